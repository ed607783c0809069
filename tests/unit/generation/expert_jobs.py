"""What a process of its own does for test_expert_reload.py: a rollout engine with experts, fed by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nemo_rl.config.loader import load_config
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest, SamplingSettings
from nemo_rl.weight_sync.buckets import BucketStream
from nemo_rl.weight_sync.interfaces import Bucket, WeightSyncError

CONFIG = Path(__file__).parents[3] / "examples" / "configs" / "grpo_tiny_cpu.yaml"
PROMPT = tuple(range(3, 20))
BUCKET_BYTES = 40_000  # a layer of experts lies in several
Weights = Mapping[str, torch.Tensor]

memory = torch.empty(1 << 20, dtype=torch.uint8)
"""Serves every bucket, as a transport's memory does."""


class Memory:
    """Both ends of a transport inside one process."""

    def buffer(self, index: int, nbytes: int) -> torch.Tensor:
        return memory.fill_(255)

    def handle(self, index: int, nbytes: int) -> dict[str, Any]:
        return {}

    def receive(self, bucket: Bucket) -> torch.Tensor:
        return memory

    def send(self, bucket: Bucket) -> None: ...

    def finish(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


def receiver(rank: int, device: torch.device) -> Memory:
    return Memory()


class Report(NamedTuple):
    """An answer after each thing that can happen to an update, and the complaint about a changed expert."""

    whole: GenerationOutput
    after_broken: GenerationOutput
    after_complaint: GenerationOutput
    complaint: str
    head_sizes: list[int]


def stream(worker: Any, weights: Weights, version: int, verify_only: bool = False) -> None:
    buckets = BucketStream(weights.items(), Memory(), version, BUCKET_BYTES, checksums=True)
    while (bucket := buckets.next()) is not None:
        worker.load_bucket(bucket, verify_only)


def publish(worker: Any, weights: Weights, version: int) -> GenerationOutput:
    worker.fill_weights(7.0)
    worker.begin_update(version)
    stream(worker, weights, version)
    stream(worker, weights, version, verify_only=True)
    worker.finish_update(version)
    request = GenerationRequest("r", PROMPT, 24, None, SamplingSettings(temperature=1.0, ignore_eos=True))
    output: GenerationOutput = worker.generate([request])[0]
    return output


def break_off(worker: Any, weights: Weights, long: str) -> None:
    """An update that vLLM rejects in the midst of a layer: one of its tensors is twice as long."""
    worker.begin_update(2)
    try:
        stream(worker, {**weights, long: torch.cat([weights[long]] * 2)}, 2)
    except (AssertionError, RuntimeError, ValueError):
        return
    raise AssertionError("a tensor of a wrong shape was taken")


def complaint_about(worker: Any, weights: Weights, changed: str) -> str:
    """What the engine says of a trainer that has one entry of one tensor otherwise."""
    other = {name: tensor.clone() for name, tensor in weights.items()}
    other[changed][-1, -1] += 1e-3
    worker.begin_update(9)
    stream(worker, weights, 9)
    try:
        stream(worker, other, 9, verify_only=True)
        worker.finish_update(9)
    except WeightSyncError as error:
        return str(error)
    return "none"


def serve(model: str, versions: list[Weights], changed: str) -> Report:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    from nemo_rl.generation.vllm.worker import VllmWorker

    worker = VllmWorker(load_config(CONFIG), model, model, 0, cpu=True)
    worker.init_receiver(f"{__name__}:receiver", {})
    whole = publish(worker, versions[0], 1)
    break_off(worker, versions[1], changed)
    after_broken = publish(worker, versions[2], 3)
    complaint = complaint_about(worker, versions[0], changed)
    report = Report(
        whole, after_broken, publish(worker, versions[1], 4), complaint, CPUAttentionBackend.get_supported_head_sizes()
    )
    worker.shutdown()
    return report


def spreads_experts(ranks: int) -> bool:
    """Whether the configuration tells vLLM to spread experts over `ranks` tensor-parallel ranks."""
    from nemo_rl.generation.vllm.engine_args import engine_arguments

    key = "policy.generation.vllm_cfg"
    config = load_config(
        CONFIG,
        ["cluster.gpus_per_node=2", f"{key}.tensor_parallel_size=2", f"{key}.expert_parallel_size={ranks}"],
    )
    arguments = engine_arguments(config.policy, "", "", cpu=False, seed=0, sleep_mode=True)
    return bool(arguments["enable_expert_parallel"])
