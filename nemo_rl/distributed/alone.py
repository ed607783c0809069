"""Starts one side without the other: the policy for SFT, engines for the evaluation of weights on disk."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nemo_rl.config.layout import GenerationLayout, ParallelLayout
from nemo_rl.config.schema import EngineConfig, WorkerConfig
from nemo_rl.distributed.cluster import reserve
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.placement import Placement, WorkerEnvironment, quiet_libraries
from nemo_rl.generation.generation import Generation
from nemo_rl.generation.vllm.environment import engine_environment
from nemo_rl.generation.vllm.plain_worker import PlainVllmWorker
from nemo_rl.policy.policy import Policy

logger = logging.getLogger(__name__)


@contextmanager
def start_policy(
    config: WorkerConfig, model_path: str, accelerator: Accelerator, python: WorkerEnvironment
) -> Iterator[Policy]:
    """The policy, ended in any case when the context ends."""
    layout, cpus, gpu = ParallelLayout.from_config(config), config.cluster.cpus_per_worker, float(accelerator.is_cuda)
    with ExitStack() as stack:
        bundles = [{"CPU": cpus} | ({"GPU": gpu} if gpu else {})] * layout.world
        group = stack.enter_context(reserve(bundles, "PACK", "the policy"))
        variables = config.policy.megatron_cfg.env_vars or {}
        policy = Policy(config, model_path, Placement(group, python, gpu, cpus, {**quiet_libraries(), **variables}))
        stack.callback(policy.shutdown)
        policy.place()
        logger.info("starting %d policy rank(s): %s", layout.world, layout)
        policy.started(policy.start())
        yield policy


@contextmanager
def start_plain_engines(
    config: EngineConfig, model_path: str, accelerator: Accelerator, python: WorkerEnvironment, adapter: str | None
) -> Iterator[Generation]:
    """Engines with the weights of `model_path` and maybe a PEFT adapter that vLLM applies."""
    engines, cpus = GenerationLayout.from_config(config), config.cluster.cpus_per_worker
    gpus = float(engines.tp * engines.pp) if accelerator.is_cuda else 0.0
    variables = {**quiet_libraries(), **engine_environment(config.policy.generation, cpu=not accelerator.is_cuda)}
    with ExitStack() as stack:
        bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        group = stack.enter_context(reserve([bundle] * engines.replicas, "PACK", "the rollout engines"))
        placement = Placement(group, python, gpus, cpus, variables)

        def start_replica(replica: int) -> Any:
            actor = placement.actor(PlainVllmWorker, replica, f"engine {replica}")
            return actor.remote(config, model_path, replica, cpu=not accelerator.is_cuda, adapter=adapter)

        logger.info("starting %d rollout engine(s): %s", engines.replicas, engines)
        generation = Generation(config, start_replica, engines.replicas)
        stack.callback(generation.shutdown)
        generation.started()
        yield generation
