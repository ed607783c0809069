"""The parts of a run that do not depend on its algorithm: run directory, trackers, display, monitor, FLOP counts."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nemo_rl.algorithms.folders import making
from nemo_rl.algorithms.settings import backend_settings
from nemo_rl.config.layout import ParallelLayout
from nemo_rl.config.loader import resolved_yaml
from nemo_rl.config.schema import TrainingConfig
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.policy.policy import Policy
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.flops import TrainingFlops
from nemo_rl.utils.logger import RunLogger
from nemo_rl.utils.logger_backends import TrackerError
from nemo_rl.utils.monitor import SystemMonitor
from nemo_rl.utils.progress import RunProgress
from nemo_rl.utils.run_dir import RunOrigin, get_run_dir
from nemo_rl.utils.stopping import TerminationFlag, TimeoutChecker


def open_logger(config: TrainingConfig, checkpoints: CheckpointManager | None, resumed: Path | None) -> RunLogger:
    origin, step = None, None
    if resumed is not None and checkpoints is not None:
        info = checkpoints.load_info(resumed)
        step = int(info["state"]["step"])
        origin = RunOrigin(resumed, step, Path(info["run_dir"]))
    with making("logger.log_dir", config.logger.log_dir):
        run_dir = get_run_dir(config.logger.log_dir, origin)
    try:
        run_logger = RunLogger(run_dir, config.model_dump(mode="json"), backend_settings(config), step)
    except TrackerError:
        shutil.rmtree(run_dir)  # nothing has begun
        raise
    (run_dir / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    return run_logger


def common_parts(
    config: TrainingConfig, model: Any, policy: Policy, accelerator: Accelerator, total: int, stack: ExitStack
) -> dict[str, Any]:
    """The fields of a TrainingRun that are made the same way for every algorithm; `model` is the model's config."""
    monitor = SystemMonitor(config.logger.gpu_monitoring.collection_interval) if config.logger.monitor_gpus else None
    return {
        "config": config,
        "policy": policy,
        "monitor": stack.enter_context(monitor) if monitor is not None else None,
        "progress": RunProgress(total),
        "termination": stack.enter_context(TerminationFlag()),
        "deadline": TimeoutChecker(config.checkpointing.checkpoint_must_save_by),
        "total_steps": total,
        "flops": training_flops(config, model, policy, accelerator),
    }


def active_parameters(rank: Mapping[str, int], part: str, layout: ParallelLayout, model: Any) -> int:
    """Parameters of the whole model that a token meets, from those of one rank: experts are not cut by tensor
    parallelism but spread over the ranks of expert parallelism, and a token is sent to few of them."""
    experts = rank[f"{part}_experts"]
    dense = (rank[part] - experts) * layout.tp * layout.pp
    if not experts:
        return dense
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    number = next(value for name in names if (value := getattr(model, name, None)))
    return dense + round(experts * layout.ep * layout.pp * model.num_experts_per_tok / number)


def training_flops(config: TrainingConfig, model: Any, policy: Policy, accelerator: Accelerator) -> TrainingFlops:
    layout = ParallelLayout.from_config(config)
    total, trainable = (active_parameters(policy.parameters, part, layout, model) for part in ("total", "trainable"))
    head_dim = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return TrainingFlops(
        frozen=total - trainable,
        trainable=trainable,
        layers=model.num_hidden_layers,
        attention_width=model.num_attention_heads * head_dim,
        recompute=config.policy.megatron_cfg.activation_checkpointing,
        device=accelerator.device_name,
    )
