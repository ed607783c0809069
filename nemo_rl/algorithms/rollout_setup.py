"""Connects what makes rollouts: engines, environments, weight transport, and for asynchronous runs the collector."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nemo_rl.algorithms.data_setup import RunData
from nemo_rl.algorithms.run import Publisher, RolloutSource
from nemo_rl.algorithms.settings import environment_settings, rollout_settings
from nemo_rl.config.schema import MasterConfig
from nemo_rl.data.interfaces import Prompt
from nemo_rl.data.loader import PromptLoader
from nemo_rl.distributed.calls import gather, watched
from nemo_rl.distributed.engines import most_requests
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.distributed.placement import WorkerEnvironment
from nemo_rl.distributed.workers import Workers
from nemo_rl.environments.interfaces import Environment
from nemo_rl.experience.async_publisher import CollectingPublisher
from nemo_rl.experience.async_source import AsyncRollouts, Collection, generate_while_paused
from nemo_rl.experience.collector import Collector, CollectorSettings
from nemo_rl.experience.rollouts import RolloutRunner
from nemo_rl.experience.sources import GeneratedRollouts, SavedRollouts
from nemo_rl.generation.generation import GENERATE_DEADLINE_S, Generation
from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync.publisher import ColocatedPublisher, NoPublisher, SeparatePublisher
from nemo_rl.weight_sync.transports import make_synchronizer

COLLECTOR_DEADLINE_S = 600.0


@dataclass(frozen=True)
class RolloutParts:
    """What a run needs of the rollout side. `steps` is limited by `max_num_steps` and by epochs."""

    source: RolloutSource
    publisher: Publisher
    runner: RolloutRunner | None
    steps: int


def connect_rollouts(
    config: MasterConfig,
    data: RunData,
    workers: Workers,
    environments: dict[str, Environment],
    accelerator: Accelerator,
    python: WorkerEnvironment,
    timer: Timer,
    stack: ExitStack,
) -> RolloutParts:
    grpo, generation = config.grpo, workers.generation
    if generation is None:
        saved = SavedRollouts(Path(config.debug.train_from_rollouts or ""))
        return RolloutParts(saved, NoPublisher(), None, min(grpo.max_num_steps, len(saved.files)))
    loader = prompt_loader(config, data)
    steps = min(grpo.max_num_steps, grpo.max_num_epochs * loader.steps_per_epoch)
    publisher = make_publisher(config, workers, generation, accelerator)
    if not grpo.async_grpo.enabled:
        generation.recover = publisher.recover
        runner = RolloutRunner(generation.generate, environments, data.tokenizer)
        settings = rollout_settings(config, data.tokenizer.eos_token_id)
        source = GeneratedRollouts(loader, runner, settings, grpo.num_generations_per_prompt)
        return RolloutParts(source, publisher, runner, steps)
    assert isinstance(publisher, SeparatePublisher)
    collection = start_collection(config, data, generation, python, stack)
    collecting = CollectingPublisher(publisher, collection, timer, grpo.async_grpo.in_flight_weight_updates)
    generation.recover = collecting.recover
    runner = RolloutRunner(generate_while_paused(generation, collection, timer), environments, data.tokenizer)
    rollouts = AsyncRollouts(collection, timer, grpo.async_grpo.starvation_deadline_s, collecting.recover)
    return RolloutParts(rollouts, collecting, runner, steps)


def prompt_loader(config: MasterConfig, data: RunData) -> PromptLoader[Prompt]:
    """The training prompts in their order, from the beginning."""
    return PromptLoader(data.train, config.grpo.num_prompts_per_step, config.data.shuffle, config.grpo.seed)


def make_publisher(
    config: MasterConfig, workers: Workers, generation: Generation, accelerator: Accelerator
) -> ColocatedPublisher | SeparatePublisher:
    synchronizer = make_synchronizer(config, workers, accelerator)
    every = config.weight_sync.measure_every
    if config.policy.generation.colocated.enabled:
        return ColocatedPublisher(workers.policy, generation, synchronizer, every)
    recompute = config.grpo.async_grpo.recompute_kv_cache_after_weight_updates
    return SeparatePublisher(workers.policy, generation, synchronizer, every, recompute)


def start_collection(
    config: MasterConfig, data: RunData, generation: Generation, python: WorkerEnvironment, stack: ExitStack
) -> Collection:
    """The collector's actor, on the driver's node; its failure ends whatever the driver waits for."""
    grpo = config.grpo
    names = sorted({prompt.env_name for prompt in data.train})
    settings = CollectorSettings(
        groups_per_step=grpo.num_prompts_per_step,
        samples=grpo.num_generations_per_prompt,
        max_age=grpo.async_grpo.max_trajectory_age_steps,
        max_failures=grpo.async_grpo.max_generation_failures,
        shuffle=config.data.shuffle,
        seed=grpo.seed,
        rollouts=rollout_settings(config, data.tokenizer.eos_token_id),
        environments={name: environment_settings(config, name) for name in names},
    )
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TOKENIZERS_PARALLELISM": "false"}
    actor = (
        ray.remote(Collector)
        .options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=most_requests(config) + 100,
            scheduling_strategy=here,
            runtime_env={"env_vars": variables, "py_executable": python.python},
        )
        .remote(settings, data.train, data.tokenizer, generation.actors)
    )
    stack.callback(ray.kill, actor)
    collection = Collection(actor, generation, drain_deadline_s=GENERATE_DEADLINE_S)
    gather([actor.ready.remote()], "starting the collector", COLLECTOR_DEADLINE_S)
    stack.callback(collection.stop)
    stack.enter_context(watched(actor.run.remote(), "the collector"))
    return collection
