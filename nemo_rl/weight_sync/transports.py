"""Chooses the transport for a placement and connects both of its ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from nemo_rl.config.layout import GenerationLayout
from nemo_rl.config.schema import EngineConfig
from nemo_rl.distributed.calls import gather
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.workers import Workers
from nemo_rl.generation.generation import Generation
from nemo_rl.policy.policy import Policy
from nemo_rl.weight_sync.interfaces import BucketReceiver, BucketSender
from nemo_rl.weight_sync.process_group import LOOPBACK, ProcessGroupReceiver, ProcessGroupSender
from nemo_rl.weight_sync.shared_memory import SharedMemoryReceiver, SharedMemorySender
from nemo_rl.weight_sync.synchronizer import WeightSynchronizer

CPU_BUCKET_BYTES = 64 << 20
CUDA_BUCKET_BYTES = 1 << 30
CONNECT_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Transport:
    """Names of the functions that make each end, and their settings. Both ends import what they name."""

    sender: str
    receiver: str
    sender_settings: dict[str, Any] = field(default_factory=dict)
    receiver_settings: Callable[[int], dict[str, Any]] = lambda replica: {}


def make_synchronizer(config: EngineConfig, workers: Workers, accelerator: Accelerator) -> WeightSynchronizer:
    """Senders on all training ranks, receivers in all engines, and what moves weights from one to the other."""
    policy, generation = workers.policy, workers.generation
    if generation is None:
        raise ValueError("there is no engine to synchronise with")

    def connect() -> None:
        """Called again when an engine was replaced: all ends start afresh."""
        transport = choose_transport(config, policy, generation, accelerator)
        policy.call("open_sender", transport.sender, transport.sender_settings, deadline_s=CONNECT_DEADLINE_S)
        opening = [
            actor.init_receiver.remote(transport.receiver, transport.receiver_settings(replica))
            for replica, actor in enumerate(generation.actors)
        ]
        gather(opening, "engine.init_receiver", CONNECT_DEADLINE_S)

    connect()
    default = CUDA_BUCKET_BYTES if accelerator.is_cuda else CPU_BUCKET_BYTES
    bucket_bytes = config.weight_sync.bucket_bytes or default
    return WeightSynchronizer(policy, generation, config.weight_sync, bucket_bytes, connect)


def choose_transport(
    config: EngineConfig, policy: Policy, generation: Generation, accelerator: Accelerator
) -> Transport:
    """Shared devices: CUDA IPC or shared memory. Own devices: a process group of trainer rank 0 and engine workers."""
    if config.policy.generation.colocated.enabled and accelerator.is_cuda:
        return Transport(f"{__name__}:cuda_ipc_sender", f"{__name__}:cuda_ipc_receiver")
    if config.policy.generation.colocated.enabled:
        serving = [rank for rank in range(len(policy.nodes)) if _first_on_node(policy.nodes, rank)]
        return Transport(
            f"{__name__}:shared_memory_sender", f"{__name__}:shared_memory_receiver", {"serving_ranks": serving}
        )
    engines = GenerationLayout.from_config(config)
    nodes = {node["node_id"] for node in [*policy.nodes, *generation.report]}
    shared = {"receivers": engines.world, "deadline_s": config.weight_sync.deadline_s}
    return Transport(
        f"{__name__}:process_group_sender",
        f"{__name__}:process_group_receiver",
        shared
        | {
            "device": "cuda:0" if accelerator.is_cuda else "cpu",  # a rank sees no device but its own
            "address": LOOPBACK if len(nodes) == 1 else policy.nodes[0]["ip"],
        },
        lambda replica: shared | {"first_rank": replica * engines.tp * engines.pp},
    )


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


def process_group_sender(rank: int, receivers: int, device: str, address: str, deadline_s: float) -> BucketSender:
    return ProcessGroupSender(rank == 0, receivers, torch.device(device), address, deadline_s)


def process_group_receiver(
    rank: int, device: torch.device, first_rank: int, receivers: int, deadline_s: float
) -> BucketReceiver:
    """`rank` counts the workers of one engine; `first_rank` is its first one's place among all engines' workers."""
    return ProcessGroupReceiver(first_rank + rank, receivers + 1, device, deadline_s)
