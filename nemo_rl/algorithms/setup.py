"""Builds a run from its configuration. Everything that can be wrong is checked before the first worker starts."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nemo_rl.algorithms.checkpoints import latest_checkpoint, open_checkpoints, restore
from nemo_rl.algorithms.data_setup import RunData, check_heads, load_data
from nemo_rl.algorithms.preflight import check_places, check_resume
from nemo_rl.algorithms.rollout_setup import connect_rollouts, prompt_loader
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.run_parts import common_parts, open_logger
from nemo_rl.algorithms.settings import environment_settings, make_loss
from nemo_rl.config.layout import GenerationLayout, ParallelLayout
from nemo_rl.config.schema import EngineConfig, MasterConfig
from nemo_rl.distributed.cluster import ray_cluster
from nemo_rl.distributed.environments import Accelerator, resolve_accelerator, worker_environment
from nemo_rl.distributed.placement import WorkerEnvironment
from nemo_rl.distributed.workers import Workers, start_workers
from nemo_rl.environments.interfaces import Environment
from nemo_rl.environments.registry import EnvironmentConfigError, make_environment
from nemo_rl.errors import first_line
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.logger import RunLogger
from nemo_rl.utils.timer import Timer

logger = logging.getLogger(__name__)


@contextmanager
def grpo_run(
    config: MasterConfig, data: RunData | None = None, environments: dict[str, Environment] | None = None
) -> Iterator[Run]:
    """A run that is ready to train, and that leaves nothing behind when the context ends, however it ends.

    `data` and `environments` take the place of what the configuration names, for benchmarks and one's own scripts.
    """
    check_places(config)
    accelerator = resolve_accelerator(config.cluster)
    data = load_data(config) if data is None else data
    check_heads(config, data.model_config, accelerator)
    with ExitStack() as stack:
        if environments is None:
            environments = stack.enter_context(open_environments(config, data))
        checkpoints = open_checkpoints(config)
        resumed = latest_checkpoint(config, checkpoints)
        check_resume(config, resumed, prompt_loader(config, data) if data.train else None)
        python = worker_environment(config.cluster, accelerator)
        logger_ = stack.enter_context(open_logger(config, checkpoints, resumed))
        layout, engines = ParallelLayout.from_config(config), GenerationLayout.from_config(config)
        logger.info("run directory %s", logger_.run_dir)
        workers_needed = layout.world + engines.world + 1
        gpus = config.cluster.gpus_per_node if accelerator.is_cuda else 0
        stack.enter_context(
            ray_cluster(config.cluster, workers=workers_needed, gpus=gpus, logs_to=logger_.run_dir / "worker_logs")
        )
        workers = stack.enter_context(
            start_workers(config, data.model_path, data.tokenizer.name_or_path, accelerator, python)
        )
        run = assemble(config, data, workers, environments, logger_, checkpoints, accelerator, python, stack)
        if resumed is not None and checkpoints is not None:
            restore(run, resumed, checkpoints)
        with stack:
            yield run


def assemble(
    config: MasterConfig,
    data: RunData,
    workers: Workers,
    environments: dict[str, Environment],
    logger_: RunLogger,
    checkpoints: CheckpointManager | None,
    accelerator: Accelerator,
    python: WorkerEnvironment,
    stack: ExitStack,
) -> Run:
    """Connect the components."""
    layout, engines = ParallelLayout.from_config(config), GenerationLayout.from_config(config)
    timer = Timer()
    parts = connect_rollouts(config, data, workers, environments, accelerator, python, timer, stack)
    return Run(
        **common_parts(config, data.model_config, workers.policy, accelerator, parts.steps, stack),
        rollouts=parts.source,
        publisher=parts.publisher,
        loss=make_loss(config),
        runner=parts.runner,
        validation_prompts=data.validation,
        logger=logger_,
        checkpoints=checkpoints,
        timer=timer,
        devices={
            "all": config.cluster.gpus_per_node * config.cluster.num_nodes,
            "policy": layout.world,
            "generation": engines.world,
        },
        engines=workers.generation.report if workers.generation is not None else [],
    )


@contextmanager
def open_environments(config: EngineConfig, data: RunData) -> Iterator[dict[str, Environment]]:
    """The environments that the data names, each with its grader processes."""
    names = {prompt.env_name for prompt in [*data.train, *data.validation]}
    environments = {name: _environment(config, name) for name in sorted(names)}
    try:
        yield environments
    finally:
        for environment in environments.values():
            environment.close()


def _environment(config: EngineConfig, name: str) -> Environment:
    settings = environment_settings(config, name)
    try:
        return make_environment(name, settings)
    except (ImportError, SyntaxError) as error:  # of the user's own module; what else it raises is for its author
        raise EnvironmentConfigError(
            f"env.{name}.entry_point={settings.entry_point} cannot be imported: {first_line(error)}"
        ) from error
