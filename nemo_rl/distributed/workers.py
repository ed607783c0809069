"""Starts policy ranks and engines where the configuration wants them."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nemo_rl.config.layout import GenerationLayout, ParallelLayout
from nemo_rl.config.schema import MasterConfig
from nemo_rl.distributed.cluster import reserve
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.placement import Placement, WorkerEnvironment
from nemo_rl.generation.generation import Generation
from nemo_rl.generation.vllm.environment import engine_environment
from nemo_rl.generation.vllm.worker import VllmWorker
from nemo_rl.policy.policy import Policy

logger = logging.getLogger(__name__)


@dataclass
class Workers:
    policy: Policy
    generation: Generation | None


@contextmanager
def start_workers(
    config: MasterConfig, model_path: str, accelerator: Accelerator, python: WorkerEnvironment
) -> Iterator[Workers]:
    """Policy and engines, built side by side; ended in any case when the context ends."""
    layout, engines = ParallelLayout.from_config(config), GenerationLayout.from_config(config)
    cpus = config.cluster.cpus_per_worker
    gpu = 1.0 if accelerator.is_cuda else 0.0
    shared = config.policy.generation.colocated.enabled
    with ExitStack() as stack:
        bundles = [{"CPU": cpus * (2 if shared else 1)} | ({"GPU": gpu} if gpu else {})] * layout.world
        group = stack.enter_context(reserve(bundles, "PACK", "the policy"))
        variables = config.policy.megatron_cfg.env_vars or {}
        policy = Policy(config, model_path, Placement(group, python, gpu, cpus, {**_quiet(), **variables}))
        stack.callback(policy.shutdown)
        policy.place()
        generation = None
        if config.debug.train_from_rollouts is None:
            logger.info("starting %d rollout engine(s): %s", engines.replicas, engines)
            generation = _start_generation(config, model_path, accelerator, python, stack, policy, group)
        if generation is not None and shared and accelerator.is_cuda:
            # vLLM measures free memory to size its cache: nobody else may move on the device meanwhile.
            generation.started()
            generation.sleep()
        logger.info("starting %d policy rank(s): %s", layout.world, layout)
        policy.started(policy.start())
        if generation is not None:
            generation.started()
        yield Workers(policy, generation)


def _start_generation(
    config: MasterConfig,
    model_path: str,
    accelerator: Accelerator,
    python: WorkerEnvironment,
    stack: ExitStack,
    policy: Policy,
    policy_group: Any,
) -> Generation:
    engines = GenerationLayout.from_config(config)
    per_engine = engines.tp * engines.pp
    cpus = config.cluster.cpus_per_worker
    variables = {**_quiet(), **engine_environment(config.policy.generation, cpu=not accelerator.is_cuda)}
    colocated = config.policy.generation.colocated.enabled
    group = policy_group
    if not colocated:
        bundle = {"CPU": cpus} | ({"GPU": float(per_engine)} if accelerator.is_cuda else {})
        group = stack.enter_context(reserve([bundle] * engines.replicas, "PACK", "the rollout engines"))
    placement = Placement(group, python, float(per_engine) if accelerator.is_cuda else 0.0, cpus, variables)
    actors = []
    for replica in range(engines.replicas):
        first = replica * per_engine
        visible = None
        if colocated and accelerator.is_cuda:
            nodes = policy.nodes[first : first + per_engine]
            visible = ",".join(str(gpu) for node in nodes for gpu in node["gpu_ids"])
        actor = placement.actor(VllmWorker, first if colocated else replica, f"engine {replica}", visible_gpus=visible)
        actors.append(actor.remote(config, model_path, replica, cpu=not accelerator.is_cuda))
    generation = Generation(config, actors)
    stack.callback(generation.shutdown)
    return generation


def _quiet() -> dict[str, str]:
    """Settings of libraries that would otherwise talk, phone home or build caches in odd places."""
    return {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONWARNINGS": "ignore"}
