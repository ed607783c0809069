"""Rollout throughput of our engine settings beside bare vLLM, on the same prompts, one fresh process per variant.

python benchmarks/rollout.py MODEL_FOLDER --requests 512 --input 64 --output 256 --repeats 3 --json FILE

bare        vLLM's defaults, random weights, no log-probabilities: what the GPU and vLLM give at best
logprobs    the same with the sampled token's log-probability
float32     the same with float32 logits
ours        what a run uses (nemo_rl/generation/vllm/engine_args.py), without Ray: vLLM's core in the same process
apart       the same with vLLM's core in a process of its own, as the variants above have it

Each draws its own weights: `benchmarks/random_checkpoint.py SHAPE FOLDER --shape-only` makes what it needs.
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import pstats
import random
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

VARIANTS = ("bare", "logprobs", "float32", "ours", "apart")


def engine_and_sampling(variant: str, options: argparse.Namespace) -> tuple[Any, Any]:
    """A vLLM engine with random weights, and the sampling parameters of all requests."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    if variant in ("ours", "apart"):
        from nemo_rl.config.schema import MasterConfig
        from nemo_rl.generation.interfaces import GenerationRequest, SamplingSettings
        from nemo_rl.generation.vllm.engine_args import engine_arguments, sampling_params

        vllm = {"gpu_memory_utilization": options.memory, "kv_cache_gb_cpu": 1.0}
        policy = {"model_name": str(options.model), "precision": options.precision, "generation": {"vllm_cfg": vllm}}
        policy["max_total_sequence_length"] = options.input + options.output
        policy["generation_batch_size"] = options.requests
        data = {"train": {"dataset_name": "tiny_copy"}}
        config, model = MasterConfig.model_validate({"policy": policy, "data": data}), str(options.model)
        arguments = engine_arguments(config.policy, model, model, cpu=options.cpu, seed=0, sleep_mode=not options.cpu)
        sampling = SamplingSettings(temperature=1.0, top_p=1.0, top_k=None, ignore_eos=True)
        return LLM(**arguments), sampling_params(
            GenerationRequest("", (), options.output, None, sampling), stream=False
        )
    arguments = {
        "model": str(options.model),
        "load_format": "dummy",
        "dtype": options.precision,
        "max_model_len": options.input + options.output,
        "max_num_seqs": options.requests,
        "gpu_memory_utilization": options.memory,
        "disable_log_stats": True,
    }
    if options.cpu:
        arguments |= {"kv_cache_memory_bytes": 2**30, "enable_chunked_prefill": False}
    if variant in ("logprobs", "float32"):
        arguments["logprobs_mode"] = "processed_logprobs"
    if variant == "float32":
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    asked = SamplingParams(
        temperature=1.0, max_tokens=options.output, ignore_eos=True, detokenize=False,
        logprobs=None if variant == "bare" else 0, output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    return LLM(**arguments), asked


def measure(variant: str, options: argparse.Namespace, connection: Any) -> None:
    """In a process of its own: one warm-up batch, then the timed ones."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if variant == "ours" else "1"
    engine, sampling = engine_and_sampling(variant, options)
    draw = random.Random(1)

    def batch() -> float:
        prompts = [
            {"prompt_token_ids": [draw.randrange(10, 110) for _ in range(options.input)]}
            for _ in range(options.requests)
        ]
        start = time.perf_counter()
        engine.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start

    batch()
    seconds = [batch() for _ in range(options.repeats)]
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(batch)
        with options.profile.with_suffix(f".{variant}.txt").open("w") as file:
            pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(60)
    cache = engine.llm_engine.vllm_config.cache_config
    connection.send({"seconds": seconds, "kv_cache_blocks": cache.num_gpu_blocks, "block_size": cache.block_size})


def run(variant: str, options: argparse.Namespace) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(variant, options, theirs))
    process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    try:
        if not ours.poll(options.deadline):
            raise TimeoutError(f"{variant} gave no result in {options.deadline} s")
        result: dict[str, Any] = ours.recv()
    finally:
        process.join(20)
        process.kill()
    median = statistics.median(result["seconds"])
    return result | {"median": median, "tokens_per_second": options.requests * options.output / median}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds for one variant")
    parser.add_argument("--profile", type=Path, help="write Python's profile of one more batch, of this process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for variant in options.variants.split(","):
        results[variant] = run(variant, options)
        if options.json:  # after each: a later variant may fail or meet a time limit
            options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    table = Table(
        title=f"{options.model.name}: {options.requests} requests of {options.input} + {options.output} tokens"
    )
    for title in ("variant", "tokens/s", "median s", "min", "max", "KV cache blocks"):
        table.add_column(title, justify="left" if title == "variant" else "right")
    for variant, r in results.items():
        numbers = (f"{r['median']:.2f}", f"{min(r['seconds']):.2f}", f"{max(r['seconds']):.2f}")
        table.add_row(variant, f"{r['tokens_per_second']:,.0f}", *numbers, str(r["kv_cache_blocks"]))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
