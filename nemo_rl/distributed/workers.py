"""Starts policy ranks and engines where the configuration wants them."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nemo_rl.config.layout import GenerationLayout, ParallelLayout
from nemo_rl.config.schema import EngineConfig, WorkerConfig
from nemo_rl.distributed.cluster import reserve
from nemo_rl.distributed.engines import start_engines
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.nodes import Node, divide_nodes, pinned
from nemo_rl.distributed.placement import Placement, WorkerEnvironment, quiet_libraries
from nemo_rl.generation.generation import Generation
from nemo_rl.policy.policy import Policy

logger = logging.getLogger(__name__)


@dataclass
class Workers:
    policy: Policy
    generation: Generation | None


@contextmanager
def start_workers(
    config: EngineConfig, model_path: str, tokenizer_path: str, accelerator: Accelerator, python: WorkerEnvironment
) -> Iterator[Workers]:
    """Policy and engines, built side by side; ended in any case when the context ends."""
    layout, engines = ParallelLayout.from_config(config), GenerationLayout.from_config(config)
    shared = config.policy.generation.colocated.enabled
    policy_nodes, engine_nodes = divide_nodes(config, config.cluster.gpus_per_node if accelerator.is_cuda else 0)
    with ExitStack() as stack:
        policy, group = _place_policy(
            config, model_path, accelerator, python, stack, policy_nodes, actors_per_bundle=2 if shared else 1
        )
        generation = None
        if config.has_engine:
            logger.info("starting %d rollout engine(s): %s", engines.replicas, engines)
            generation = start_engines(
                config, model_path, tokenizer_path, accelerator, python, policy, group, engine_nodes, stack
            )
        if generation is not None and shared and accelerator.is_cuda:
            # vLLM measures free memory to size its cache: nobody else may move on the device meanwhile.
            generation.started()
            generation.sleep()
        logger.info("starting %d policy rank(s): %s", layout.world, layout)
        policy.started(policy.start())
        if generation is not None:
            generation.started()
            tokens = [engine["kv_cache_blocks"] * engine["block_size"] for engine in generation.report]
            logger.info("engine ready: room for %s tokens in each KV cache", f"{min(tokens):,}")
        yield Workers(policy, generation)


@contextmanager
def start_policy(
    config: WorkerConfig, model_path: str, accelerator: Accelerator, python: WorkerEnvironment
) -> Iterator[Policy]:
    """The policy alone, ended in any case when the context ends."""
    with ExitStack() as stack:
        policy, _ = _place_policy(config, model_path, accelerator, python, stack, [], actors_per_bundle=1)
        logger.info("starting %d policy rank(s): %s", policy.layout.world, policy.layout)
        policy.started(policy.start())
        yield policy


def _place_policy(
    config: WorkerConfig,
    model_path: str,
    accelerator: Accelerator,
    python: WorkerEnvironment,
    stack: ExitStack,
    nodes: list[Node],
    *,
    actors_per_bundle: int,
) -> tuple[Policy, Any]:
    """The policy's actors, not built yet, and the placement group that they are in; one bundle per device."""
    cpus, gpu = config.cluster.cpus_per_worker, 1.0 if accelerator.is_cuda else 0.0
    layout = ParallelLayout.from_config(config)
    bundles = [{"CPU": cpus * actors_per_bundle} | ({"GPU": gpu} if gpu else {})] * layout.world
    group = stack.enter_context(reserve(pinned(bundles, nodes), "PACK", "the policy"))
    variables = config.policy.megatron_cfg.env_vars or {}
    policy = Policy(config, model_path, Placement(group, python, gpu, cpus, {**quiet_libraries(), **variables}))
    stack.callback(policy.shutdown)
    policy.place()
    return policy, group
