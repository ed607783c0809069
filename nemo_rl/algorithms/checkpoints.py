"""What a checkpoint of a run holds, whatever its algorithm: saving, and going on exactly there."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_rl.algorithms.folders import making
from nemo_rl.algorithms.run import RunState, TrainingRun
from nemo_rl.config.schema import MasterConfig, TrainingConfig
from nemo_rl.utils.checkpoint import CheckpointManager, metric_key
from nemo_rl.utils.checkpoint_files import check_compatible
from nemo_rl.utils.progress import RunProgress

logger = logging.getLogger(__name__)

_OPTIMIZER = (
    "optimizer", "lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "sgd_momentum",
)  # fmt: skip


def open_checkpoints(config: TrainingConfig) -> CheckpointManager | None:
    settings = config.checkpointing
    if not settings.enabled:
        return None
    with making("checkpointing.checkpoint_dir", settings.checkpoint_dir):
        return CheckpointManager(
            settings.checkpoint_dir, settings.metric_name, settings.higher_is_better, settings.keep_top_k
        )


def latest_checkpoint(config: TrainingConfig, checkpoints: CheckpointManager | None) -> Path | None:
    """The checkpoint to resume from, found sound; None for a fresh start."""
    return None if checkpoints is None else checkpoints.latest(config.checkpointing.fallback_to_previous)


def save_checkpoint(run: TrainingRun, metrics: Mapping[str, float]) -> None:
    """Write step_N with everything that the run needs to go on exactly where it is."""
    if run.checkpoints is None:
        return
    start = time.perf_counter()
    step = run.state.step
    update_best(run, metrics)
    with run.policy_on_device():
        folder = run.checkpoints.begin(step)
        run.policy.save(folder / "policy")
        info: dict[str, Any] = {
            "metrics": metrics,
            "compatibility": compatibility(run.config),
            "state": asdict(run.state),
            "data": run.data_position.state_dict(),
            "run_dir": str(run.logger.run_dir),
        }
        final = run.checkpoints.finalize(step, info, run.config.model_dump(mode="json"))
    seconds = time.perf_counter() - start
    run.deadline.mark_save(seconds)
    logger.info("saved %s in %.1f s", final, seconds)


def restore(run: TrainingRun, checkpoint: Path, checkpoints: CheckpointManager) -> None:
    """Put weights, optimizer, data position and counters back as they were after the checkpoint's step."""
    info = checkpoints.load_info(checkpoint)
    check_compatible(info, compatibility(run.config))
    run.policy.load(checkpoint / "policy")
    run.data_position.load_state_dict(info["data"])
    run.state = RunState(**{key: info["state"][key] for key in asdict(RunState())})
    run.progress = RunProgress(run.total_steps, start_step=run.state.step)
    logger.info("resumed from %s at step %d", checkpoint, run.state.step)


def compatibility(config: TrainingConfig) -> dict[str, Any]:
    """What a checkpoint and a run that resumes from it must agree on."""
    policy = config.policy
    peft, optimizer = policy.megatron_cfg.peft, policy.megatron_cfg.optimizer
    return {
        "policy.model_name": policy.model_name,
        "policy.precision": policy.precision,
        "checkpointing.pretrained_checkpoint": config.checkpointing.pretrained_checkpoint,
        "policy.megatron_cfg.peft.enabled": peft.enabled,
        # Each mode remembers in its own way which prompts are begun and not trained on.
        **({"grpo.async_grpo.enabled": config.grpo.async_grpo.enabled} if isinstance(config, MasterConfig) else {}),
        # Saved with the optimizer and go on as they were: another value would be without effect.
        **{f"policy.megatron_cfg.optimizer.{key}": getattr(optimizer, key) for key in _OPTIMIZER},
        **{
            f"policy.megatron_cfg.scheduler.{key}": value
            for key, value in policy.megatron_cfg.scheduler.model_dump().items()
        },
        **(
            {
                "policy.megatron_cfg.peft.dim": peft.dim,
                "policy.megatron_cfg.peft.alpha": peft.alpha,
                "policy.megatron_cfg.peft.target_modules": list(peft.target_modules),
                "policy.megatron_cfg.peft.exclude_modules": list(peft.exclude_modules),
            }
            if peft.enabled
            else {}
        ),
    }


def update_best(run: TrainingRun, metrics: Mapping[str, float]) -> None:
    settings = run.config.checkpointing
    value = metrics.get(metric_key(settings.metric_name)) if settings.metric_name else None
    best = run.state.best_metric
    if value is not None and math.isfinite(value) and (best is None or (value > best) == settings.higher_is_better):
        run.state.best_metric = value
