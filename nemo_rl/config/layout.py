"""The arithmetic of ranks and batches: which rank has which role, how rollouts are divided."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import EngineConfig, MasterConfig, WorkerConfig


def policy_world_size(config: "EngineConfig") -> int:
    """Devices of the trainer: all of them, less what generation takes for itself when it is not colocated."""
    return config.cluster.gpus_per_node * config.cluster.num_nodes - reserved_for_generation(config)


def reserved_for_generation(config: "EngineConfig") -> int:
    """Devices that only the engine uses; 0 when colocated. On one node a part of it, else whole nodes."""
    colocated, cluster = config.policy.generation.colocated, config.cluster
    if colocated.enabled:
        return 0
    return (colocated.resources.gpus_per_node or 0) * (
        1 if cluster.num_nodes == 1 else colocated.resources.num_nodes or 0
    )


def generation_world_size(config: "EngineConfig") -> int:
    """Devices that the engine runs on."""
    return reserved_for_generation(config) or policy_world_size(config)


@dataclass(frozen=True)
class ParallelLayout:
    """Sizes of the trainer's axes; world = tp * pp * cp * dp. Experts (ep) are spread over ranks of tp * cp * dp."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    world: int

    @classmethod
    def from_config(cls, config: "WorkerConfig") -> "ParallelLayout":
        megatron, world = config.policy.megatron_cfg, config.policy_devices
        tp, pp, cp = (
            megatron.tensor_model_parallel_size,
            megatron.pipeline_model_parallel_size,
            megatron.context_parallel_size,
        )
        if world < 1 or world % (tp * pp * cp):
            raise ValueError(
                f"the policy's {world} devices (cluster.gpus_per_node x cluster.num_nodes, less generation's "
                "own) must be a "
                f"multiple of tensor x pipeline x context parallel size = {tp} x {pp} x {cp} = {tp * pp * cp}"
            )
        return cls(tp=tp, pp=pp, cp=cp, dp=world // (tp * pp * cp), ep=megatron.expert_model_parallel_size, world=world)


@dataclass(frozen=True)
class GenerationLayout:
    """Sizes of the engine's axes; world = tp * pp * replicas."""

    tp: int
    pp: int
    replicas: int
    world: int

    @classmethod
    def from_config(cls, config: "EngineConfig") -> "GenerationLayout":
        vllm, world = config.policy.generation.vllm_cfg, generation_world_size(config)
        per_engine = vllm.tensor_parallel_size * vllm.pipeline_parallel_size
        if world < 1 or world % per_engine:
            raise ValueError(
                f"policy.generation.vllm_cfg: the {world} devices of generation must be a multiple of "
                f"tensor_parallel_size x pipeline_parallel_size = {vllm.tensor_parallel_size} x "
                f"{vllm.pipeline_parallel_size} = {per_engine}"
            )
        return cls(vllm.tensor_parallel_size, vllm.pipeline_parallel_size, world // per_engine, world)


@dataclass(frozen=True)
class BatchArithmetic:
    """How the rollouts of one step are divided. `micro_batches` is None when packing decides it by token count."""

    prompts: int
    generations: int
    rollouts: int
    optimizer_steps: int
    rollouts_per_rank: int
    micro_batches: int | None


def batch_arithmetic(config: "MasterConfig") -> BatchArithmetic:
    """The division of a step's rollouts over optimizer steps, data-parallel ranks and micro-batches."""
    prompts, generations = config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt
    global_batch = config.policy.train_global_batch_size
    per_rank = global_batch // ParallelLayout.from_config(config).dp
    packed = config.policy.sequence_packing.enabled
    return BatchArithmetic(
        prompts=prompts,
        generations=generations,
        rollouts=prompts * generations,
        optimizer_steps=prompts * generations // global_batch,
        rollouts_per_rank=per_rank,
        micro_batches=None if packed else per_rank // config.policy.train_micro_batch_size,
    )
