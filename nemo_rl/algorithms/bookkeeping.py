"""Turns what a step produced into metrics, files and checkpoints."""

import logging
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_rl.algorithms.advantages import GroupAdvantages
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.algorithms.rollout_metrics import advantage_metrics, rollout_metrics
from nemo_rl.algorithms.run import Run
from nemo_rl.experience.batch import flatten
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.store import record
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.utils.checkpoint import metric_key

logger = logging.getLogger(__name__)

GENERATION_SECTIONS = ("generation", "exposed_generation")


@dataclass
class StepResult:
    """Everything a step leaves behind; absent parts did not happen."""

    groups: list[RolloutGroup]
    batch: TrainBatch | None = None
    advantages: GroupAdvantages | None = None
    sums: MetricSums | None = None
    updates: list[dict[str, float]] = field(default_factory=list)
    refit: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def record_step(run: Run, result: StepResult) -> None:
    """Assemble the step's metrics under the names that dashboards know, and write them with the rollouts."""
    run.rollout_steps += 1
    step = run.steps_done()
    seconds = run.timer.seconds()
    train = dict(rollout_metrics(result.groups))
    if result.sums is not None and result.advantages is not None and result.batch is not None:
        train |= result.sums.finalize()
        train |= advantage_metrics(result.advantages, result.batch.sample_mask_B)
        train |= _update_metrics(result.updates)
    metrics = {f"train/{name}": value for name, value in (train | run.rollouts.metrics()).items()}
    metrics |= result.refit | result.validation
    metrics |= {f"timing/train/{name}": value for name, value in seconds.items()}
    metrics |= performance(run, result, seconds)
    if run.monitor is not None:
        metrics |= run.monitor.poll()
    result.metrics = metrics
    run.state.consumed_samples += len(flatten(result.groups))
    run.logger.log_rollouts([record(rollout) for rollout in flatten(result.groups)], step)
    run.logger.log_metrics(metrics, step)
    run.progress.step(step, metrics)
    run.deadline.mark_step(seconds["total_step_time"])


def _update_metrics(updates: list[dict[str, float]]) -> dict[str, float]:
    """Of several optimizer steps: mean gradient norm, the last learning rate and weight decay."""
    norms = [update["grad_norm"] for update in updates]
    return {"grad_norm": sum(norms) / len(norms), "lr": updates[-1]["lr"], "wd": updates[-1]["wd"]}


def performance(run: Run, result: StepResult, seconds: dict[str, float]) -> dict[str, float]:
    """Tokens per second and device of each part, each over the devices that did it and the seconds it took."""
    rollouts = flatten(result.groups)
    total = sum(len(rollout.token_ids) for rollout in rollouts)
    generated = sum(rollout.generated_length for rollout in rollouts)
    whole = seconds["total_step_time"]
    rates = {
        "samples_per_sec": len(rollouts) / whole,
        "tokens_per_sec_per_gpu": total / whole / run.devices["all"],
    }
    spent = sum(seconds.get(name, 0.0) for name in GENERATION_SECTIONS)
    if spent > 0:
        rates["generation_tokens_per_sec_per_gpu"] = generated / spent / run.devices["generation"]
    training = seconds.get("policy_training", 0.0)
    if training > 0 and result.batch is not None:
        rates["policy_training_tokens_per_sec_per_gpu"] = total / training / run.devices["policy"]
        rates |= run.flops.utilization(result.batch.lengths_B.tolist(), training, run.devices["policy"])
    return {f"performance/{name}": value for name, value in rates.items()}


def save_checkpoint(run: Run, result: StepResult) -> None:
    """Write step_N with everything that the run needs to go on exactly where it is."""
    if run.checkpoints is None:
        return
    start = time.perf_counter()
    step = run.state.step
    _update_best(run, result.metrics)
    folder = run.checkpoints.begin(step)
    run.policy.save(folder / "policy")
    info: dict[str, Any] = {
        "metrics": result.metrics,
        "compatibility": compatibility(run),
        "state": asdict(run.state),
        "rollouts": run.rollouts.state_dict(),
        "run_dir": str(run.logger.run_dir),
    }
    final = run.checkpoints.finalize(step, info, run.config.model_dump(mode="json"))
    run.deadline.mark_save(time.perf_counter() - start)
    logger.info("saved %s", final)


def compatibility(run: Run) -> dict[str, Any]:
    """What a checkpoint and a run that resumes from it must agree on."""
    policy = run.config.policy
    peft = policy.megatron_cfg.peft
    return {
        "policy.model_name": policy.model_name,
        "policy.precision": policy.precision,
        "policy.megatron_cfg.peft.enabled": peft.enabled,
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


def _update_best(run: Run, metrics: dict[str, float]) -> None:
    settings = run.config.checkpointing
    value = metrics.get(metric_key(settings.metric_name)) if settings.metric_name else None
    best = run.state.best_metric
    if value is not None and (best is None or (value > best) == settings.higher_is_better):
        run.state.best_metric = value
