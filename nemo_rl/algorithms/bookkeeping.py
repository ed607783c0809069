"""Turns what a step produced into metrics, files and checkpoints."""

from dataclasses import dataclass, field

from nemo_rl.algorithms.advantages import GroupAdvantages
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.algorithms.rollout_metrics import advantage_metrics, rollout_metrics
from nemo_rl.algorithms.run import Run
from nemo_rl.experience.batch import flatten
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.store import record
from nemo_rl.policy.interfaces import TrainBatch

GENERATION_SECTIONS = ("generation", "exposed_generation")
"""When engines generate; an asynchronous run's also do while the policy works."""
MEANWHILE = ("policy_and_reference_logprobs", "policy_training")


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
        train |= {"loss": 0.0} | result.sums.finalize()  # 0 where no token counted
        train |= advantage_metrics(result.advantages, result.batch.sample_mask_B)
        train |= update_metrics(result.updates)
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


def update_metrics(updates: list[dict[str, float]]) -> dict[str, float]:
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
    sections = GENERATION_SECTIONS + (MEANWHILE if run.config.grpo.async_grpo.enabled else ())
    spent = sum(seconds.get(name, 0.0) for name in sections)
    if spent > 0:
        rates["generation_tokens_per_sec_per_gpu"] = generated / spent / run.devices["generation"]
    training = seconds.get("policy_training", 0.0)
    if training > 0 and result.batch is not None:
        rates["policy_training_tokens_per_sec_per_gpu"] = total / training / run.devices["policy"]
        rates |= run.flops.utilization(result.batch.lengths_B.tolist(), training, run.devices["policy"])
    return {f"performance/{name}": value for name, value in rates.items()}
