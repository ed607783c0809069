"""Time of a whole GRPO step with its split, and memory per phase, on random prompts with random rewards.

python benchmarks/grpo_step.py MODEL_FOLDER --prompts 32 --generations 16 --input 64 --output 256 --rank 32 --steps 8

Every response is exactly --output tokens long (end of sequence ignored). Prints a table, writes JSON.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nemo_rl.algorithms.data_setup import RunData
from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.setup import grpo_run
from nemo_rl.config.schema import MasterConfig
from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import EnvironmentInput, EnvironmentOutput
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest
from nemo_rl.utils.environment_info import describe_environment
from nemo_rl.utils.logging_setup import setup_driver_logging


class RandomReward:
    """Rewards that say nothing, so that a step costs what a step costs."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]:
        return [EnvironmentOutput(reward=self.random.random()) for _ in batch]

    def close(self) -> None: ...


def configuration(options: argparse.Namespace, folder: str) -> MasterConfig:
    rollouts = options.prompts * options.generations
    length = options.input + options.output
    return MasterConfig.model_validate(
        {
            "grpo": {
                "num_prompts_per_step": options.prompts,
                "num_generations_per_prompt": options.generations,
                "max_num_steps": options.steps,
                "val_period": 0,
                "skip_reference_policy_logprobs_calculation": True,
            },
            "loss_fn": {"reference_policy_kl_penalty": 0.0, "force_on_policy_ratio": options.on_policy},
            "policy": {
                "model_name": str(options.model),
                "precision": options.precision,
                "train_global_batch_size": rollouts,
                "train_micro_batch_size": 1,
                "generation_batch_size": min(rollouts, 1024),
                "max_total_sequence_length": length,
                "logprob_chunk_size": options.logits_chunk,
                "sequence_packing": {
                    "enabled": True,
                    "train_mb_tokens": options.micro_batch_tokens,
                    "logprob_mb_tokens": options.micro_batch_tokens,
                },
                "megatron_cfg": {
                    "activation_checkpointing": options.recompute,
                    "peft": {"enabled": options.rank > 0, "dim": options.rank or 8, "alpha": options.rank or 8},
                    "distributed_data_parallel_config": {"overlap_grad_reduce": False, "overlap_param_gather": False},
                    "optimizer": {"lr": 5e-5},
                },
                "generation": {
                    "max_new_tokens": options.output,
                    "ignore_eos": True,
                    "seed_per_sample": options.seed_per_sample,
                    "vllm_cfg": {
                        "gpu_memory_utilization": options.memory,
                        "enforce_eager": options.eager,
                        "kv_cache_gb_cpu": 1.0,
                        "env_vars": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} if options.core_apart else None,
                    },
                },
            },
            "data": {"train": {"dataset_name": "tiny_copy", "split_validation_size": 0.0}},
            "checkpointing": {"enabled": False},
            "logger": {"log_dir": folder, "monitor_gpus": False},
            "weight_sync": {"measure_every": 0, "checksums": options.checksums, "verify_every": options.verify_every},
            "cluster": {"worker_environment": "driver"},
        }
    )


def random_prompts(options: argparse.Namespace) -> list[Prompt]:
    draw = random.Random(1)
    return [
        Prompt(
            f"random:{i}",
            ({"role": "user", "content": ""},),
            tuple(draw.randrange(10, 110) for _ in range(options.input)),
            "random",
            {},
        )
        for i in range(options.prompts * options.steps)
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the steps; per-section medians without the first step, which compiles and warms up."""
    from transformers import AutoConfig, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        config = configuration(options, folder)
        data = RunData(
            str(options.model),
            AutoConfig.from_pretrained(options.model),
            AutoTokenizer.from_pretrained(options.model),
            random_prompts(options),
            [],
        )
        start = time.perf_counter()
        with grpo_run(config, data, {"random": RandomReward()}) as run:
            setup = time.perf_counter() - start
            engine = time_the_engine(run)
            with run.progress:
                grpo_train(run)
            memory = memory_by_phase(run)
        history = run.logger.history
    return {
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "environment": describe_environment(),
        "setup_seconds": setup,
        "medians": medians(history[1:]),
        "spread": {"min": min(_totals(history[1:])), "max": max(_totals(history[1:]))},
        "engine_seconds": engine,
        "memory": memory,
        "engines": run.engines,
        "history": history,
    }


def time_the_engine(run: Run) -> list[float]:
    """Seconds of each call to the engine, as it happens: what generation costs without prompts, text and rewards."""
    assert run.runner is not None
    seconds: list[float] = []
    generate = run.runner.generate

    def timed(requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        start = time.perf_counter()
        outputs = generate(requests)
        seconds.append(time.perf_counter() - start)
        return outputs

    run.runner.generate = timed
    return seconds


def memory_by_phase(run: Run) -> dict[str, Any]:
    """GiB that torch's allocator holds on the policy's ranks, offloaded (after the last sync) and back."""
    phases = {"generating": run.policy.call("memory_gib")}
    run.publisher.training_phase()
    phases["training"] = run.policy.call("memory_gib")
    return phases


def _totals(history: Sequence[dict[str, Any]]) -> list[float]:
    return [line["timing/train/total_step_time"] for line in history]


def medians(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = [n for n in history[-1] if n.startswith(("timing/", "performance/", "refit/")) or n in AGREEMENT]
    return {name: statistics.median(line[name] for line in history if name in line) for name in names}


AGREEMENT = (
    "train/gen_kl_error",
    "train/token_mult_prob_error",
    "train/mean_abs_logprob_error",
    "train/max_abs_logprob_error",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--generations", type=int, default=16)
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--rank", type=int, default=32, help="LoRA rank on all linears; 0 trains everything")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--micro-batch-tokens", type=int, default=32768)
    parser.add_argument("--memory", type=float, default=0.6, help="share of the GPU for the engine")
    parser.add_argument("--on-policy", action="store_true", help="loss_fn.force_on_policy_ratio: no extra forward pass")
    parser.add_argument("--logits-chunk", type=int, default=None)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--core-apart", action="store_true", help="vLLM's engine core in a process of its own")
    parser.add_argument("--seed-per-sample", action="store_true")
    parser.add_argument("--no-checksums", dest="checksums", action="store_false")
    parser.add_argument("--verify-every", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    console = Console(width=140)
    setup_driver_logging(Console(stderr=True))
    result = measure(options)
    table = Table(
        title=f"GRPO step, {options.model.name}, {options.prompts} x {options.generations} rollouts, "
        f"{options.input} + {options.output} tokens"
    )
    table.add_column("median of steps 2..")
    table.add_column("value", justify="right")
    for name, value in result["medians"].items():
        table.add_row(name, f"{value:,.4g}")
    table.add_row("setup seconds", f"{result['setup_seconds']:.1f}")
    table.add_row("memory", json.dumps(result["memory"]))
    console.print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
