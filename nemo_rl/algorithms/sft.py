"""Supervised fine-tuning: the model imitates the assistant of given conversations, token by token.

conversations -> batch with the assistant's tokens marked -> -log pi(token), averaged -> new adapters
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from nemo_rl.algorithms.bookkeeping import update_metrics
from nemo_rl.algorithms.checkpoints import save_checkpoint
from nemo_rl.algorithms.masking import masked_sum
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.algorithms.run import DataPosition, TrainingRun
from nemo_rl.algorithms.sft_data import sft_batch
from nemo_rl.config.schema import SFTMasterConfig
from nemo_rl.data.conversations import Example
from nemo_rl.data.loader import PromptLoader
from nemo_rl.policy.interfaces import TrainBatch

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SFTRun(TrainingRun):
    """One supervised fine-tuning run."""

    config: SFTMasterConfig
    examples: PromptLoader[Example]
    validation_examples: list[Example]

    @property
    def data_position(self) -> DataPosition:
        return self.examples

    def validation_due(self) -> bool:
        return bool(self.validation_examples) and self.due(self.config.sft.val_period, self.config.sft.val_at_end)


@dataclass
class SFTStep:
    """What one step leaves behind."""

    batch: TrainBatch
    sums: MetricSums
    updates: list[dict[str, float]]
    validation: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def sft_train(run: SFTRun) -> None:
    """Train from `run.state.step` to the end of the run, validating and saving on the way."""
    if run.config.sft.val_at_start and run.state.step == 0 and run.validation_examples:
        run.logger.log_metrics(validate(run), step=0)
    while not run.finished():
        run.begin_step()
        with run.stage("data_processing"):
            batch = sft_batch(run.examples.next_prompts())
        with run.stage("policy_training"):
            sums, updates = run.policy.train(batch, run.loss)
        run.state.step += 1
        step = SFTStep(batch, sums, updates)
        if run.validation_due():
            with run.stage("validation"):
                step.validation = validate(run)
        record_step(run, step)
        if run.save_due():
            with run.stage("checkpointing"):
                save_checkpoint(run, step.metrics)


def validate(run: SFTRun) -> dict[str, float]:
    """Mean negative log-likelihood of the validation set's answers, per token."""
    total = tokens = 0.0
    for examples in validation_batches(run.config, run.validation_examples):
        batch = sft_batch(examples)
        logprobs_BT = run.policy.logprobs(batch).double()
        total -= float(masked_sum(logprobs_BT, batch.mask_BT))
        tokens += float(batch.mask_BT.sum())
    return {"validation/val_loss": total / tokens, "validation/num_valid_tokens": tokens}


def validation_batches(config: SFTMasterConfig, examples: Sequence[Example]) -> list[Sequence[Example]]:
    """The first `val_batches` batches of the validation set; all of it when that is 0 or -1."""
    size, most = config.sft.val_global_batch_size, config.sft.val_batches
    batches = [examples[first : first + size] for first in range(0, len(examples), size)]
    return batches[:most] if most > 0 else batches


def record_step(run: SFTRun, step: SFTStep) -> None:
    """Assemble the step's metrics and write them."""
    seconds = run.timer.seconds()
    tokens, answers = int(step.batch.lengths_B.sum()), int(step.batch.mask_BT.sum())
    train = {"loss": 0.0} | step.sums.finalize() | update_metrics(step.updates)
    train |= {"num_valid_samples": step.batch.size, "total_num_tokens": tokens, "global_valid_toks": answers}
    metrics = {f"train/{name}": float(value) for name, value in train.items()} | step.validation
    metrics |= {f"timing/train/{name}": value for name, value in seconds.items()}
    whole, training = seconds["total_step_time"], seconds["policy_training"]
    metrics |= {
        "performance/samples_per_sec": step.batch.size / whole,
        "performance/tokens_per_sec_per_gpu": tokens / whole / run.devices["all"],
        "performance/policy_training_tokens_per_sec_per_gpu": tokens / training / run.devices["policy"],
    }
    used = run.flops.utilization(step.batch.lengths_B.tolist(), training, run.devices["policy"])
    metrics |= {f"performance/{name}": value for name, value in used.items()}
    if run.monitor is not None:
        metrics |= run.monitor.poll()
    step.metrics = metrics
    run.state.consumed_samples += step.batch.size
    run.state.total_valid_tokens += answers
    run.logger.log_metrics(metrics, run.state.step)
    run.progress.step(run.state.step, metrics)
    run.deadline.mark_step(whole)
