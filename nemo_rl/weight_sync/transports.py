"""Chooses the transport for a placement and connects both of its ends."""

from typing import Any

import torch

from nemo_rl.config.schema import MasterConfig
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.workers import Workers
from nemo_rl.weight_sync.interfaces import BucketReceiver, BucketSender
from nemo_rl.weight_sync.shared_memory import SharedMemoryReceiver, SharedMemorySender
from nemo_rl.weight_sync.synchronizer import WeightSynchronizer

CPU_BUCKET_BYTES = 64 << 20
CUDA_BUCKET_BYTES = 1 << 30


def make_synchronizer(config: MasterConfig, workers: Workers, accelerator: Accelerator) -> WeightSynchronizer:
    """Open senders on all training ranks and receivers on all engines."""
    policy, generation = workers.policy, workers.generation
    if generation is None:
        raise ValueError("there is no engine to synchronise with")
    default = CUDA_BUCKET_BYTES if accelerator.is_cuda else CPU_BUCKET_BYTES
    if accelerator.is_cuda:
        policy.call("open_sender", f"{__name__}:cuda_ipc_sender", {})
        generation.call("init_receiver", f"{__name__}:cuda_ipc_receiver", {})
        return WeightSynchronizer(policy, generation, config.weight_sync, config.weight_sync.bucket_bytes or default)
    first_of_node = [_first_on_node(policy.nodes, rank) for rank in range(len(policy.nodes))]
    policy.call(
        "open_sender",
        f"{__name__}:shared_memory_sender",
        {"serving_ranks": [r for r, f in enumerate(first_of_node) if f]},
    )
    generation.call("init_receiver", f"{__name__}:shared_memory_receiver", {})
    return WeightSynchronizer(policy, generation, config.weight_sync, config.weight_sync.bucket_bytes or default)


def _first_on_node(nodes: list[dict[str, Any]], rank: int) -> bool:
    return all(node["node_id"] != nodes[rank]["node_id"] for node in nodes[:rank])


def shared_memory_sender(rank: int, serving_ranks: list[int]) -> BucketSender:
    return SharedMemorySender(serves=rank in serving_ranks)


def shared_memory_receiver(rank: int, device: torch.device) -> BucketReceiver:
    return SharedMemoryReceiver()


def cuda_ipc_sender(rank: int) -> BucketSender:
    from nemo_rl.weight_sync.cuda_ipc import CudaIpcSender

    return CudaIpcSender()


def cuda_ipc_receiver(rank: int, device: torch.device) -> BucketReceiver:
    from nemo_rl.weight_sync.cuda_ipc import CudaIpcReceiver

    return CudaIpcReceiver(device)
