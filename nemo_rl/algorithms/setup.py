"""Builds a run from its configuration. Everything that can be wrong is checked before the first worker starts."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_rl.algorithms.bookkeeping import compatibility
from nemo_rl.algorithms.data_setup import RunData, load_data
from nemo_rl.algorithms.run import Publisher, Run, RunState
from nemo_rl.algorithms.settings import backend_settings, environment_settings, make_loss, rollout_settings
from nemo_rl.config.layout import GenerationLayout, ParallelLayout
from nemo_rl.config.loader import resolved_yaml
from nemo_rl.config.schema import MasterConfig
from nemo_rl.data.loader import PromptLoader
from nemo_rl.distributed.cluster import ray_cluster
from nemo_rl.distributed.environments import Accelerator, resolve_accelerator, worker_environment
from nemo_rl.distributed.workers import Workers, start_workers
from nemo_rl.environments.interfaces import Environment
from nemo_rl.environments.registry import make_environment
from nemo_rl.experience.rollouts import RolloutRunner
from nemo_rl.experience.sources import GeneratedRollouts, SavedRollouts
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.checkpoint_files import check_compatible
from nemo_rl.utils.flops import TrainingFlops
from nemo_rl.utils.logger import RunLogger
from nemo_rl.utils.logger_backends import check_backends
from nemo_rl.utils.monitor import SystemMonitor
from nemo_rl.utils.progress import RunProgress
from nemo_rl.utils.run_dir import RunOrigin, get_run_dir
from nemo_rl.utils.stopping import TerminationFlag, TimeoutChecker
from nemo_rl.weight_sync.publisher import ColocatedPublisher, NoPublisher, SeparatePublisher
from nemo_rl.weight_sync.transports import make_synchronizer

logger = logging.getLogger(__name__)


@contextmanager
def grpo_run(
    config: MasterConfig, data: RunData | None = None, environments: dict[str, Environment] | None = None
) -> Iterator[Run]:
    """A run that is ready to train, and that leaves nothing behind when the context ends, however it ends.

    `data` and `environments` take the place of what the configuration names, for benchmarks and one's own scripts.
    """
    check_backends(backend_settings(config))
    data = load_data(config) if data is None else data
    checkpoints = open_checkpoints(config)
    resumed = latest_checkpoint(config, checkpoints)
    accelerator = resolve_accelerator(config.cluster)
    python = worker_environment(config.cluster, accelerator)
    with ExitStack() as stack:
        logger_ = stack.enter_context(open_logger(config, checkpoints, resumed))
        layout, engines = ParallelLayout.from_config(config), GenerationLayout.from_config(config)
        logger.info("run directory %s", logger_.run_dir)
        workers_needed = layout.world + engines.world + 1
        stack.enter_context(
            ray_cluster(
                config.cluster, workers=workers_needed, gpus=config.cluster.gpus_per_node if accelerator.is_cuda else 0
            )
        )
        workers = stack.enter_context(start_workers(config, data.model_path, accelerator, python))
        if environments is None:
            environments = stack.enter_context(open_environments(config, data))
        run = assemble(config, data, workers, environments, logger_, checkpoints, accelerator, stack)
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
    stack: ExitStack,
) -> Run:
    """Connect the components."""
    layout, engines = ParallelLayout.from_config(config), GenerationLayout.from_config(config)
    runner = None
    publisher: Publisher = NoPublisher()
    if workers.generation is not None:
        runner = RolloutRunner(workers.generation.generate, environments, data.tokenizer)
        synchronizer = make_synchronizer(config, workers, accelerator)
        every = config.weight_sync.measure_every
        if config.policy.generation.colocated.enabled:
            publisher = ColocatedPublisher(workers.policy, workers.generation, synchronizer, every)
        else:
            publisher = SeparatePublisher(workers.policy, synchronizer, every)
    source, total = rollout_source(config, data, runner)
    monitor = SystemMonitor(config.logger.gpu_monitoring.collection_interval) if config.logger.monitor_gpus else None
    return Run(
        config=config,
        policy=workers.policy,
        rollouts=source,
        publisher=publisher,
        loss=make_loss(config),
        runner=runner,
        validation_prompts=data.validation,
        logger=logger_,
        checkpoints=checkpoints,
        monitor=stack.enter_context(monitor) if monitor is not None else None,
        progress=RunProgress(total),
        termination=stack.enter_context(TerminationFlag()),
        deadline=TimeoutChecker(config.checkpointing.checkpoint_must_save_by),
        total_steps=total,
        devices={
            "all": config.cluster.gpus_per_node * config.cluster.num_nodes,
            "policy": layout.world,
            "generation": engines.world,
        },
        flops=training_flops(config, data, workers, accelerator),
        engines=workers.generation.report if workers.generation is not None else [],
    )


def rollout_source(config: MasterConfig, data: RunData, runner: RolloutRunner | None) -> tuple[Any, int]:
    """The source of groups, and how many steps it has: limited by steps and by epochs."""
    grpo = config.grpo
    if config.debug.train_from_rollouts is not None:
        saved = SavedRollouts(Path(config.debug.train_from_rollouts))
        return saved, min(grpo.max_num_steps, len(saved.files))
    if runner is None:
        raise ValueError("generating rollouts needs an engine")
    loader = PromptLoader(data.train, grpo.num_prompts_per_step, config.data.shuffle, grpo.seed)
    source = GeneratedRollouts(loader, runner, rollout_settings(config), grpo.num_generations_per_prompt)
    return source, min(grpo.max_num_steps, grpo.max_num_epochs * loader.steps_per_epoch)


def training_flops(config: MasterConfig, data: RunData, workers: Workers, accelerator: Accelerator) -> TrainingFlops:
    model, counts, layout = data.model_config, workers.policy.parameters, ParallelLayout.from_config(config)
    shards = layout.tp * layout.pp
    trainable = counts["trainable"] * shards
    head_dim = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return TrainingFlops(
        frozen=counts["total"] * shards - trainable,
        trainable=trainable,
        layers=model.num_hidden_layers,
        attention_width=model.num_attention_heads * head_dim,
        recompute=config.policy.megatron_cfg.activation_checkpointing,
        device=accelerator.device_name,
    )


def open_checkpoints(config: MasterConfig) -> CheckpointManager | None:
    settings = config.checkpointing
    if not settings.enabled:
        return None
    return CheckpointManager(
        settings.checkpoint_dir, settings.metric_name, settings.higher_is_better, settings.keep_top_k
    )


def latest_checkpoint(config: MasterConfig, checkpoints: CheckpointManager | None) -> Path | None:
    """The checkpoint to resume from, found sound; None for a fresh start."""
    return None if checkpoints is None else checkpoints.latest(config.checkpointing.fallback_to_previous)


def open_logger(config: MasterConfig, checkpoints: CheckpointManager | None, resumed: Path | None) -> RunLogger:
    origin, step = None, None
    if resumed is not None and checkpoints is not None:
        info = checkpoints.load_info(resumed)
        step = int(info["state"]["step"])
        origin = RunOrigin(resumed, step, Path(info["run_dir"]))
    run_dir = get_run_dir(config.logger.log_dir, origin)
    run_logger = RunLogger(run_dir, config.model_dump(mode="json"), backend_settings(config), step)
    (run_dir / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    return run_logger


@contextmanager
def open_environments(config: MasterConfig, data: RunData) -> Iterator[dict[str, Environment]]:
    """The environments that the data names, each with its grader processes."""
    names = {prompt.env_name for prompt in [*data.train, *data.validation]}
    environments = {name: make_environment(name, environment_settings(config, name)) for name in sorted(names)}
    try:
        yield environments
    finally:
        for environment in environments.values():
            environment.close()


def restore(run: Run, checkpoint: Path, checkpoints: CheckpointManager) -> None:
    """Put weights, optimizer, data position and counters back as they were after the checkpoint's step."""
    info = checkpoints.load_info(checkpoint)
    check_compatible(info, compatibility(run))
    run.policy.load(checkpoint / "policy")
    run.rollouts.load_state_dict(info["rollouts"])
    run.state = RunState(**{key: info["state"][key] for key in asdict(RunState())})
    run.progress = RunProgress(run.total_steps, start_step=run.state.step)
    logger.info("resumed from %s at step %d", checkpoint, run.state.step)
