"""Training throughput of a bare Megatron-Bridge loop: what benchmarks/train_step.py is measured against.

python benchmarks/bridge_loop.py MODEL_FOLDER --sequences 512 --length 320 --micro-batches 64,128

Bridge's model with Bridge's LoRA on all linears, Megatron's schedule, fused cross-entropy of the next token and
Adam; one rank, no Ray, no engine. Sequences have equal lengths and fill rows [micro-batch, length] without padding, so
Bridge's settings meet their best case. Each size of the micro-batch that does not fit the GPU is reported as such.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from train_step import training_flops

from nemo_rl.policy.megatron.cpu_shim import install as install_cpu_shim
from nemo_rl.policy.megatron.cpu_shim import teach_bridge_local_layers

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(options: argparse.Namespace, folder: str) -> tuple[Any, list[Any], Any]:
    """(bridge, chunks, optimizer) with what Bridge chooses; only precision, adapters and rope fusion are asked for."""
    install_cpu_shim()
    from megatron.bridge import AutoBridge
    from megatron.bridge.peft.lora import LoRA
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from nemo_rl.policy.megatron.distributed import join_training_ranks
    from nemo_rl.policy.megatron.model import has_transformer_engine, torch_dtype, use_local_kernels

    join_training_ranks(f"file://{folder}/rendezvous", 0, 1, None)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(0)
    dtype = torch_dtype(options.precision)
    bridge = AutoBridge.from_hf_pretrained(str(options.model))
    provider = bridge.to_megatron_provider(load_weights=True)
    provider.params_dtype = provider.pipeline_dtype = provider.autocast_dtype = dtype
    provider.bf16 = dtype is torch.bfloat16
    provider.attention_dropout = provider.hidden_dropout = 0.0
    provider.apply_rope_fusion = has_transformer_engine()
    provider.gradient_accumulation_fusion = False  # needs Apex
    if not has_transformer_engine():
        teach_bridge_local_layers()
        use_local_kernels(provider)
    lora = LoRA(dim=options.rank, alpha=options.rank)
    provider.register_pre_wrap_hook(lambda chunks: lora(chunks, training=True))
    provider.finalize()
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    chunks = provider.provide_distributed_model(ddp_config=ddp, bf16=provider.bf16)
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-5, bf16=provider.bf16, params_dtype=dtype, use_distributed_optimizer=True, clip_grad=1.0
    )
    return bridge, chunks, get_megatron_optimizer(settings, chunks)


def batches(options: argparse.Namespace, size: int) -> list[torch.Tensor]:
    tokens = torch.randint(10, 110, (options.sequences, options.length + 1), device=DEVICE)
    return list(tokens.split(size))


def forward_step(
    counted: int, data: Iterator[torch.Tensor], model: Any
) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, dict[str, torch.Tensor]]]]:
    """Cross-entropy of the last `counted` tokens of every row."""
    tokens = next(data)
    positions = torch.arange(tokens.shape[1] - 1, device=DEVICE).expand(tokens.shape[0], -1)
    losses = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:].contiguous())

    def loss(per_token: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        mean = per_token[:, -counted:].float().mean()
        return mean, {"loss": mean.detach()}

    return losses, loss


def steps(chunks: list[Any], optimizer: Any, options: argparse.Namespace, size: int) -> list[float]:
    """Seconds of each optimizer step; the first warms up."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    seconds = []
    for _ in range(options.steps):
        data = batches(options, size)
        _wait()
        start = time.perf_counter()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=partial(forward_step, options.output),
            data_iterator=iter(data),
            model=chunks,
            num_microbatches=len(data),
            seq_length=options.length,
            micro_batch_size=size,
            forward_only=False,
        )
        updated, _, _ = optimizer.step()
        _wait()
        if not updated:
            raise FloatingPointError("the optimizer refused the step: gradients were not finite")
        seconds.append(time.perf_counter() - start)
    return seconds


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(bridge: Any, chunks: list[Any], optimizer: Any, options: argparse.Namespace, size: int) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = steps(chunks, optimizer, options, size)[1:]
    except torch.OutOfMemoryError as error:
        return {"does_not_fit": str(error).splitlines()[0]}
    median = statistics.median(seconds)
    report = {
        "seconds": median,
        "min": min(seconds),
        "max": max(seconds),
        "tokens_per_second": options.sequences * options.length / median,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None,
    }
    weights = [p for chunk in chunks for p in chunk.parameters()]
    trainable = sum(p.numel() for p in weights if p.requires_grad)
    frozen = sum(p.numel() for p in weights if not p.requires_grad)
    count = training_flops(bridge.hf_pretrained.config, frozen, trainable, recompute=False)
    return report | count.utilization([options.length] * options.sequences, median, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--output", type=int, default=256, help="tokens at the end of each that the loss counts")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--micro-batches", default="64,128", help="sequences in a micro-batch, one run each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bridge, chunks, optimizer = build(options, folder)
        results = {}
        for size in (int(word) for word in options.micro_batches.split(",")):
            results[size] = measure(bridge, chunks, optimizer, options, size)
            print(f"{size} sequences a micro-batch:", json.dumps(results[size]), flush=True)
        torch.distributed.destroy_process_group()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
