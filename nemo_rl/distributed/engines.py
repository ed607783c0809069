"""Starts rollout engines: on the policy's devices, or on devices of their own."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nemo_rl.config.layout import GenerationLayout
from nemo_rl.config.schema import EngineConfig, MasterConfig
from nemo_rl.distributed.cluster import reserve
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.nodes import Node, pinned
from nemo_rl.distributed.placement import Placement, WorkerEnvironment, quiet_libraries
from nemo_rl.generation.generation import Generation
from nemo_rl.generation.vllm.async_worker import VllmAsyncWorker
from nemo_rl.generation.vllm.environment import engine_environment
from nemo_rl.generation.vllm.plain_worker import PlainVllmWorker
from nemo_rl.generation.vllm.worker import VllmWorker
from nemo_rl.policy.policy import Policy

logger = logging.getLogger(__name__)


def start_engines(
    config: EngineConfig,
    model_path: str,
    tokenizer_path: str,
    accelerator: Accelerator,
    python: WorkerEnvironment,
    policy: Policy,
    policy_group: Any,
    nodes: list[Node],
    stack: ExitStack,
) -> Generation:
    """The handle knows how to start a replica again in its place."""
    engines = GenerationLayout.from_config(config)
    per_engine, cpus = engines.tp * engines.pp, config.cluster.cpus_per_worker
    colocated = config.policy.generation.colocated.enabled
    group = policy_group
    if not colocated:
        bundle = {"CPU": cpus} | ({"GPU": float(per_engine)} if accelerator.is_cuda else {})
        bundles = pinned([bundle] * engines.replicas, nodes)
        group = stack.enter_context(reserve(bundles, "PACK", "the rollout engines"))
    variables = {**quiet_libraries(), **engine_environment(config.policy.generation, cpu=not accelerator.is_cuda)}
    placement = Placement(group, python, float(per_engine) if accelerator.is_cuda else 0.0, cpus, variables)

    def start_replica(replica: int) -> Any:
        first = replica * per_engine
        visible = None
        if colocated and accelerator.is_cuda:
            shared = policy.nodes[first : first + per_engine]
            visible = ",".join(str(gpu) for node in shared for gpu in node["gpu_ids"])
        name, bundle = f"engine {replica}", first if colocated else replica
        if not config.policy.generation.vllm_cfg.async_engine:
            actor = placement.actor(VllmWorker, bundle, name, visible_gpus=visible)
        else:
            # Requests are calls that wait; control calls must never queue behind them.
            calls = 2 * most_requests(config) + 100
            actor = placement.actor(VllmAsyncWorker, bundle, name, visible_gpus=visible, max_concurrency=calls)
        return actor.remote(config, model_path, tokenizer_path, replica, cpu=not accelerator.is_cuda)

    generation = Generation(config, start_replica, engines.replicas)
    stack.callback(generation.shutdown)
    return generation


def most_requests(config: EngineConfig) -> int:
    """Requests that can be under way at once: collected groups of all admissible ages, and a validation batch."""
    if not isinstance(config, MasterConfig):
        return config.policy.generation_batch_size
    grpo = config.grpo
    ages = grpo.async_grpo.max_trajectory_age_steps + 1 if grpo.async_grpo.enabled else 1
    training = grpo.num_prompts_per_step * grpo.num_generations_per_prompt * ages
    return training + grpo.val_batch_size * grpo.val_num_generations_per_prompt


@contextmanager
def plain_engines(
    config: EngineConfig,
    model_path: str,
    tokenizer_path: str,
    accelerator: Accelerator,
    python: WorkerEnvironment,
    adapter: str | None,
) -> Iterator[Generation]:
    """Engines alone, with the weights of `model_path` and maybe a PEFT adapter that vLLM applies."""
    engines, cpus = GenerationLayout.from_config(config), config.cluster.cpus_per_worker
    per_engine = engines.tp * engines.pp
    gpus = float(per_engine) if accelerator.is_cuda else 0.0
    variables = {**quiet_libraries(), **engine_environment(config.policy.generation, cpu=not accelerator.is_cuda)}
    with ExitStack() as stack:
        bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        group = stack.enter_context(reserve([bundle] * engines.replicas, "PACK", "the rollout engines"))
        placement = Placement(group, python, gpus, cpus, variables)
        logger.info("starting %d rollout engine(s): %s", engines.replicas, engines)

        def start_replica(replica: int) -> Any:
            actor, cpu = placement.actor(PlainVllmWorker, replica, f"engine {replica}"), not accelerator.is_cuda
            return actor.remote(config, model_path, tokenizer_path, replica, cpu=cpu, adapter=adapter)

        generation = Generation(config, start_replica, engines.replicas)
        stack.callback(generation.shutdown)
        generation.started()
        yield generation
