"""One asynchronous run whose engine is killed again and again: it ends well, and its frozen base is what it was.

Usage: python tests/functional/many_kills.py --kills 20 [--config FILE] LOG_DIR [key=value ...]

The run goes on until all kills are done and 3 steps more. Then `account_groups.py LOG_DIR` accounts for its groups.
"""

import argparse
import random
import sys
import threading
import time
from pathlib import Path

import psutil
from rich.console import Console

from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.setup import grpo_run
from nemo_rl.config.loader import load_config
from nemo_rl.utils.logging_setup import setup_driver_logging

sys.path.insert(0, str(Path(__file__).parent))
from kill_workers import workers

CONFIG = Path(__file__).parents[2] / "examples" / "configs" / "grpo_tiny_cpu_async.yaml"
STEPS_AFTER = 3


class Killer(threading.Thread):
    """Kills at random moments between which the run finishes a step or two; then sets the run's end."""

    def __init__(self, run: Run, kills: int) -> None:
        super().__init__(daemon=True)
        self.run_, self.kills, self.rng = run, kills, random.Random(0)
        self.victims: list[str] = []

    def run(self) -> None:
        while len(self.victims) < self.kills:
            step = self.run_.state.step
            while self.run_.state.step <= step:
                time.sleep(0.05)
            time.sleep(self.rng.uniform(0.0, 2.0))
            alive = workers(psutil.Process(), "engine")
            if alive:
                victim = self.rng.choice(alive)
                self.victims.append(f"step {self.run_.state.step}: {victim.cmdline()[0]}")
                print(f"kill {len(self.victims)} at {self.victims[-1]}", flush=True)
                victim.kill()
        self.run_.total_steps = self.run_.state.step + STEPS_AFTER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log_dir", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    setup_driver_logging(Console(stderr=True))
    changes = [f"logger.log_dir={options.log_dir}", "grpo.max_num_steps=100000", "checkpointing.enabled=false"]
    quiet = ["grpo.val_period=5", "grpo.val_at_start=false", "grpo.val_at_end=false"]
    with grpo_run(load_config(options.config, [*changes, *quiet, *options.overrides])) as run:
        before = run.policy.call("base_fingerprint")
        killer = Killer(run, options.kills)
        killer.start()
        grpo_train(run)
        after = run.policy.call("base_fingerprint")
        last = run.logger.history[-1]
    print(f"{len(killer.victims)} kills, {run.state.step} steps, reward {last['train/reward']:.3f}")
    print(f"base hash unchanged: {before == after}; requests issued again: {last['train/reissued_requests']:.0f}")
    if before != after or len(killer.victims) < options.kills:
        sys.exit(1)


if __name__ == "__main__":
    main()
