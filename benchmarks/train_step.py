"""Training throughput of one rank without Ray or an engine, and where its time goes.

python benchmarks/train_step.py MODEL_FOLDER --sequences 512 --length 320 --micro-batch-tokens 32768 [--profile FILE]

Packed rows of equal random sequences, LoRA on all linears, loss on the last --output tokens. MFU counts what LoRA does.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from nemo_rl.algorithms.losses import Normalizer
from nemo_rl.algorithms.settings import make_loss
from nemo_rl.config.schema import MasterConfig
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.policy.megatron.worker import MegatronPolicyWorker
from nemo_rl.policy.sharding import CuttingRule, cut_batch
from nemo_rl.utils.flops import TrainingFlops


def configuration(options: argparse.Namespace, micro_batch_tokens: int, chunk: int | None) -> MasterConfig:
    return MasterConfig.model_validate(
        {
            "loss_fn": {"reference_policy_kl_penalty": 0.0, "force_on_policy_ratio": True},
            "grpo": {"num_prompts_per_step": options.sequences // 2, "num_generations_per_prompt": 2, "val_period": 0,
                     "skip_reference_policy_logprobs_calculation": True},
            "policy": {
                "model_name": str(options.model),
                "precision": options.precision,
                "train_global_batch_size": options.sequences,
                "train_micro_batch_size": 1,
                "max_total_sequence_length": options.length,
                "logprob_chunk_size": chunk,
                "sequence_packing": {
                    "enabled": True,
                    "train_mb_tokens": micro_batch_tokens,
                    "logprob_mb_tokens": micro_batch_tokens,
                },
                "megatron_cfg": {
                    "activation_checkpointing": options.recompute,
                    "peft": {"enabled": options.rank > 0, "dim": options.rank or 8, "alpha": options.rank or 8},
                    "distributed_data_parallel_config": {"overlap_grad_reduce": False, "overlap_param_gather": False},
                },
            },
            "data": {"train": {"dataset_name": "tiny_max", "split_validation_size": 0.0}},
            "checkpointing": {"enabled": False},
        }
    )  # fmt: skip


def random_batch(options: argparse.Namespace) -> TrainBatch:
    B, T = options.sequences, options.length
    mask = torch.zeros(B, T, dtype=torch.bool)
    mask[:, T - options.output :] = True
    return TrainBatch(
        token_ids_BT=torch.randint(10, 110, (B, T)),
        lengths_B=torch.full((B,), T),
        loss_mask_BT=mask,
        sample_mask_B=torch.ones(B, dtype=torch.bool),
        advantages_B=torch.randn(B),
        generation_logprobs_BT=torch.zeros(B, T),
    )


def measure(
    worker: MegatronPolicyWorker, batch: TrainBatch, config: MasterConfig, options: argparse.Namespace
) -> dict[str, Any]:
    policy = config.policy
    multiple = policy.make_sequence_length_divisible_by
    rule = CuttingRule(1, policy.sequence_packing.train_mb_tokens, divisible_by=multiple)
    rows = cut_batch(batch, 1, rule).rows_of(0, batch)
    loss, normalizer = make_loss(config), Normalizer.of(batch.mask_BT)
    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        worker.train(rows, loss, normalizer)
        _wait()
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    worker.logprobs(rows)
    _wait()
    inference = time.perf_counter() - start
    median = statistics.median(seconds[1:])
    tokens = batch.size * options.length
    report: dict[str, Any] = {
        "micro_batches": len(rows),
        "seconds": median,
        "min": min(seconds[1:]),
        "max": max(seconds[1:]),
        "tokens_per_second": tokens / median,
        "logprob_seconds": inference,
        "memory_gib": worker.memory_gib(),
    }
    return report | flops(worker).utilization(batch.lengths_B.tolist(), median, 1)


def flops(worker: MegatronPolicyWorker) -> TrainingFlops:
    trainable = sum(p.numel() for p in worker.model.trainable().values())
    frozen = sum(p.numel() for p in worker.model.frozen().values())
    recompute = worker.config.policy.megatron_cfg.activation_checkpointing
    return training_flops(worker.model.bridge.hf_pretrained.config, frozen, trainable, recompute=recompute)


def training_flops(model: Any, frozen: int, trainable: int, *, recompute: bool) -> TrainingFlops:
    """The counter for a model of this Hugging Face configuration on the GPU that is here, if any."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    width = model.num_attention_heads * model.head_dim
    return TrainingFlops(frozen, trainable, model.num_hidden_layers, width, recompute, name)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def profile(worker: MegatronPolicyWorker, batch: TrainBatch, config: MasterConfig, path: Path) -> str:
    """Kernel and host time of one micro-batch's training step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    rule = CuttingRule(1, config.policy.sequence_packing.train_mb_tokens)
    rows = cut_batch(batch, 1, rule).rows_of(0, batch)[:1]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with torch_profile(activities=activities) as trace:
        worker.train(rows, make_loss(config), Normalizer.of(batch.mask_BT))
        _wait()
    key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    averages = trace.key_averages()
    table: str = averages.table(sort_by=key, row_limit=40, max_name_column_width=60)
    path.write_text(
        table + "\n" + averages.table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=60)
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--variants", default="16384:,32768:8192", help="micro-batch tokens:logits chunk, ...")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    batch = random_batch(options)
    results: dict[str, Any] = {}
    worker = None
    folder = tempfile.mkdtemp()  # NCCL reads the rendezvous file when it first communicates
    for variant in options.variants.split(","):
        tokens, _, chunk = variant.partition(":")
        config = configuration(options, int(tokens), int(chunk) if chunk else None)
        if worker is None:
            worker = MegatronPolicyWorker(config, str(options.model), 0, 1)
            print(worker.build(f"file://{folder}/rendezvous"))
        worker.config = config
        worker.layout = worker.row_layout()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        results[variant] = measure(worker, batch, config, options)
        print(variant, json.dumps(results[variant]), flush=True)
    if worker is not None and options.profile is not None:
        print(profile(worker, batch, config, options.profile)[:6000])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
