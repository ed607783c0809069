"""Group relative policy optimisation (arXiv:2402.03300): the whole algorithm, one step function for every mode.

    rollouts -> rewards -> advantages within each prompt's group -> clipped policy gradient -> new weights to the engine

Where rollouts come from and when weights are published is the business of `run.rollouts` and `run.publisher`; sync,
asynchronous, colocated and non-colocated runs all execute this loop.
"""

import logging

import torch

from nemo_rl.algorithms.advantages import GroupAdvantages, group_advantages
from nemo_rl.algorithms.bookkeeping import StepResult, record_step
from nemo_rl.algorithms.checkpoints import save_checkpoint
from nemo_rl.algorithms.kl import kl_estimate
from nemo_rl.algorithms.masking import masked_sum
from nemo_rl.algorithms.reward_shaping import finished_mask, overlong_penalty
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.validation import validate
from nemo_rl.config.schema import MasterConfig
from nemo_rl.experience.batch import flatten, train_batch
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.policy.interfaces import TrainBatch

logger = logging.getLogger(__name__)


def grpo_train(run: Run) -> None:
    """Train from `run.state.step` to the end of the run, publishing weights, validating and saving on the way."""
    grpo = run.config.grpo
    with run.timer("weight_sync"):
        run.publisher.publish(version=run.state.step)
    first_validation = validate(run) if grpo.val_at_start and run.state.step == 0 else {}
    if first_validation:
        run.logger.log_metrics(first_validation, step=0)

    while not run.finished():
        run.begin_step()
        with run.stage("generation", timed="exposed_generation" if grpo.async_grpo.enabled else "generation"):
            groups = run.rollouts.next_groups(version=run.state.step)
        if run.config.debug.rollouts_only:
            record_step(run, StepResult(groups=groups))
            run.note_stop()
            continue
        run.publisher.training_phase()
        result = grpo_step(run, groups)
        with run.stage("weight_sync"):
            result.refit = run.publisher.publish(version=run.state.step)
        if run.validation_due():
            with run.stage("validation"):
                result.validation = validate(run)
        record_step(run, result)
        if run.save_due():
            with run.stage("checkpointing"):
                save_checkpoint(run, result.metrics)


def grpo_step(run: Run, groups: list[RolloutGroup]) -> StepResult:
    """One update of the policy from these groups."""
    rollouts = flatten(groups)
    batch = train_batch(
        rollouts, advantages_B=torch.zeros(len(rollouts)), sample_mask_B=samples_that_count(rollouts, run.config)
    )
    with run.stage("policy_and_reference_logprobs"):
        batch = with_logprobs(run, batch)
    with run.stage("advantage_calculation"):
        rewards_B = shaped_rewards(rollouts, batch, run.config)
        advantages = compare_within_groups(rewards_B, rollouts, run.config)
        batch = batch.with_advantages(advantages.advantages_B, advantages.valid_B)
    with run.stage("policy_training"):
        sums, updates = run.policy.train(batch, run.loss)
    run.state.step += 1
    return StepResult(groups=groups, batch=batch, advantages=advantages, sums=sums, updates=updates)


def with_logprobs(run: Run, batch: TrainBatch) -> TrainBatch:
    """Add the trainer's own log-probabilities before the update, and the reference's if anything uses them.

    With `force_on_policy_ratio` the policy is its own previous policy, so that pass is not made.
    """
    previous = None if run.config.loss_fn.force_on_policy_ratio else run.policy.logprobs(batch)
    reference = run.policy.reference_logprobs(batch) if run.needs_reference else None
    return batch.with_logprobs(previous, reference)


def samples_that_count(rollouts: list[Rollout], config: MasterConfig) -> torch.Tensor:
    """Which rollouts enter the loss; overlong filtering leaves truncated ones out, their reward still counts. [B]"""
    if not config.grpo.overlong_filtering:
        return torch.ones(len(rollouts), dtype=torch.bool)
    return finished_mask([rollout.finish_reason for rollout in rollouts])


def shaped_rewards(rollouts: list[Rollout], batch: TrainBatch, config: MasterConfig) -> torch.Tensor:
    """Rewards of the environment, less the penalties that are configured. float32 [B], NaN where grading failed."""
    rewards_B = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32)
    shaping = config.grpo.reward_shaping
    if shaping.enabled:
        lengths_B = torch.tensor([rollout.generated_length for rollout in rollouts])
        rewards_B = rewards_B + overlong_penalty(
            lengths_B, shaping.max_response_length, shaping.overlong_buffer_length, shaping.overlong_buffer_penalty
        )
    loss = config.loss_fn
    if loss.use_kl_in_reward:
        assert batch.previous_logprobs_BT is not None and batch.reference_logprobs_BT is not None
        kl_BT = kl_estimate(
            batch.previous_logprobs_BT,
            batch.reference_logprobs_BT,
            loss.reference_policy_kl_type,
            input_clamp=loss.kl_input_clamp_value,
            output_clamp=loss.kl_output_clamp_value,
        )
        rewards_B = rewards_B - loss.reference_policy_kl_penalty * masked_sum(kl_BT, batch.loss_mask_BT, dim=-1)
    return rewards_B


def compare_within_groups(rewards_B: torch.Tensor, rollouts: list[Rollout], config: MasterConfig) -> GroupAdvantages:
    """What each rollout is worth against the others of its prompt."""
    return group_advantages(
        rewards_B,
        [rollout.group_id for rollout in rollouts],
        leave_one_out=config.grpo.use_leave_one_out_baseline,
        normalize=config.grpo.normalize_rewards,
    )
