"""Kills workers of a running training at random moments, as `kill -9` or a failing host would.

Usage: python tests/functional/kill_workers.py LOG_DIR --kills 3 --who engine

LOG_DIR is the run's `logger.log_dir`: its metrics say how far the run is, its path tells its processes from others'.
Each kill comes once training has gone on a step since the last one. Exits 1 if the run ends before all kills are done.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import psutil

START_DEADLINE_S = 300.0
TITLES = {
    "engine": ("ray::VllmAsyncWorker", "ray::VllmWorker", "VLLM::EngineCore"),
    "collector": ("ray::Collector",),
    "policy": ("ray::MegatronPolicyWorker",),
}
"""How each role's processes call themselves; an engine has two, and is dead without either."""


def driver_of(log_dir: Path) -> psutil.Process | None:
    """The process that was told to log there; with `uv run` that is uv, whose child is the driver."""
    for process in psutil.process_iter(["cmdline"]):
        if f"logger.log_dir={log_dir}" in (process.info["cmdline"] or []):
            return process
    return None


def workers(driver: psutil.Process, who: str) -> list[psutil.Process]:
    """Processes of the run by their role."""
    found = []
    for process in driver.children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if title.startswith(TITLES[who]):
            found.append(process)
    return found


def steps_done(log_dir: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in log_dir.glob("exp_*/metrics.jsonl"))


def wait_for_step(log_dir: Path, seen: int) -> None:
    end = time.monotonic() + START_DEADLINE_S
    while steps_done(log_dir) <= seen:
        if time.monotonic() > end:
            sys.exit(f"nothing was recorded after {seen} records for {START_DEADLINE_S:.0f} s")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log_dir", type=Path)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--who", choices=TITLES, default="engine")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, log_dir, seen = random.Random(arguments.seed), arguments.log_dir, 0
    for kill in range(arguments.kills):
        wait_for_step(log_dir, seen)
        time.sleep(rng.uniform(0.0, 2.0))
        seen = steps_done(log_dir)
        driver = driver_of(log_dir)
        alive = workers(driver, arguments.who) if driver is not None else []
        if not alive:
            sys.exit(f"the run ended, or has no {arguments.who}, before kill {kill + 1}")
        victim = rng.choice(alive)
        print(f"kill {kill + 1} after {seen} records: {victim.pid} {' '.join(victim.cmdline())}", flush=True)
        victim.kill()


if __name__ == "__main__":
    main()
