"""Does the rollout engine serve what the trainer trains? Syncs the configured model and layout, and compares.

uv run tools/verify_refit.py --config FILE [--syncs 3] [--json FILE] key=value ...

Brings up policy and engine, draws new adapters before every sync (with policy.megatron_cfg.peft.enabled=false the
weights stay as they are), has the engine compare every tensor with the trainer's merge, and at the end lets the engine
answer random prompts and the trainer score the answers. Exit code 1 on any disagreement.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nemo_rl.algorithms.data_setup import RunData, check_layout, load_model
from nemo_rl.algorithms.mismatch import mismatch_metrics
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.settings import rollout_settings
from nemo_rl.algorithms.setup import grpo_run
from nemo_rl.config.loader import load_config
from nemo_rl.config.schema import MasterConfig
from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import Environment, EnvironmentInput, EnvironmentOutput
from nemo_rl.errors import UserError
from nemo_rl.experience.batch import flatten, train_batch
from nemo_rl.utils.logging_setup import setup_driver_logging
from nemo_rl.weight_sync.interfaces import WeightSyncError
from nemo_rl.weight_sync.publisher import ColocatedPublisher, SeparatePublisher

ALWAYS = (
    "weight_sync.verify_every=1",
    "weight_sync.measure_every=1",
    "checkpointing.enabled=false",
    "grpo.async_grpo.enabled=false",
    "grpo.async_grpo.in_flight_weight_updates=false",
    "grpo.async_grpo.recompute_kv_cache_after_weight_updates=false",
)
LIMITS = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 16, 16, 32


class NoReward:
    """The engine's answers are only scored by the trainer."""

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]:
        return [EnvironmentOutput(reward=0.0) for _ in batch]

    def close(self) -> None: ...


def random_data(config: MasterConfig) -> RunData:
    """The configured model, and prompts of random tokens."""
    model = load_model(config.policy)
    check_layout(config.policy, model.config)
    draw = random.Random(config.seed)
    prompts = [
        Prompt(
            f"random:{i}",
            ({"role": "user", "content": ""},),
            tuple(draw.randrange(model.config.vocab_size) for _ in range(PROMPT_TOKENS)),
            "none",
            {},
        )
        for i in range(max(PROMPTS, config.grpo.num_prompts_per_step))
    ]
    return RunData(model.path, model.config, model.tokenizer, prompts, [])


def verify(run: Run, prompts: Sequence[Prompt], syncs: int) -> dict[str, Any]:
    """Sync new adapters `syncs` times, each compared on the engine's side, then compare log-probabilities."""
    base = run.policy.call("base_fingerprint")
    run.publisher.publish(0)
    memory, lines = [], []
    for version in range(1, syncs + 1):
        run.publisher.training_phase()
        run.policy.call("draw_adapters", version)
        lines.append(run.publisher.publish(version))
        memory.append(memory_of(run))
    agreement = logprob_agreement(run, prompts)
    return {
        "syncs": lines,
        "memory_gib": memory,
        "engines": run.engines,
        "agreement": agreement,
        "base_unchanged": run.policy.call("base_fingerprint") == base,
    }


def memory_of(run: Run) -> dict[str, list[dict[str, float]]]:
    """Right after a sync, when a colocated policy is away: of every policy rank and every engine's workers, in GiB."""
    assert isinstance(run.publisher, ColocatedPublisher | SeparatePublisher)
    engines = [worker for engine in run.publisher.generation.call("memory_gib") for worker in engine]
    return {"policy": run.policy.call("memory_gib"), "engine": engines}


def growth(memory: Sequence[dict[str, list[dict[str, float]]]]) -> str:
    """First, middle and last reading of each side's first process, in GiB."""
    shown = {"first": memory[0], "middle": memory[len(memory) // 2], "last": memory[-1]}
    return "\n".join(
        f"memory of the {side}, GiB, {name} sync: "
        + ", ".join(f"{kind} {gib:.3f}" for kind, gib in reading[side][0].items())
        for side in ("policy", "engine")
        for name, reading in shown.items()
    )


def logprob_agreement(run: Run, prompts: Sequence[Prompt]) -> dict[str, float]:
    """The engine answers the prompts, the trainer scores the answers."""
    assert run.runner is not None
    ids = [prompt.prompt_id for prompt in prompts]
    settings = rollout_settings(run.config, run.runner.tokenizer.eos_token_id)
    settings = replace(settings, max_new_tokens=min(settings.max_new_tokens, ANSWER_TOKENS))
    rollouts = flatten(run.runner.run(prompts, ids, 1, settings))
    count = len(rollouts)
    batch = train_batch(rollouts, torch.zeros(count), torch.ones(count, dtype=torch.bool))
    run.publisher.training_phase()
    return mismatch_metrics(batch.generation_logprobs_BT, run.policy.logprobs(batch), batch.mask_BT)


def report(result: dict[str, Any], console: Console) -> None:
    lines = result["syncs"]
    table = Table(title=f"{len(lines)} syncs, all tensors equal to the merge")
    for title in ("", "median", "min", "max"):
        table.add_column(title, justify="left" if not title else "right")
    for name in lines[0]:
        values = [line[name] for line in lines]
        table.add_row(name, *(f"{f(values):,.4g}" for f in (statistics.median, min, max)))
    console.print(table)
    agreement = ", ".join(f"{name} {value:.2e}" for name, value in result["agreement"].items())
    console.print(f"log-probabilities, engine against trainer: {agreement}")
    console.print(f"base unchanged: {result['base_unchanged']}")
    console.print(growth(result["memory_gib"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("examples/configs/grpo_tiny_cpu.yaml"))
    parser.add_argument("--syncs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return parser.parse_intermixed_args()


def main() -> int:
    options, console = arguments(), Console(width=120)
    setup_driver_logging(Console(stderr=True))
    with tempfile.TemporaryDirectory() as folder:
        try:
            config: MasterConfig = load_config(
                options.config, [*options.overrides, *ALWAYS, f"logger.log_dir={folder}"]
            )
            limit = LIMITS[config.policy.precision]
            environments: dict[str, Environment] = {"none": NoReward()}
            data = random_data(config)
            with grpo_run(config, data, environments) as run:
                result = verify(run, data.train[:PROMPTS], options.syncs)
        except (UserError, WeightSyncError) as error:
            console.print(f"[bold red]error:[/] {error}")
            return 2 if not isinstance(error, WeightSyncError) else 1
    report(result, console)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    worst = result["agreement"]["max_abs_logprob_error"]
    if worst > limit or not result["base_unchanged"]:
        console.print(f"[bold red]disagreement:[/] {worst:.2e} (limit {limit} in {config.policy.precision})")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
