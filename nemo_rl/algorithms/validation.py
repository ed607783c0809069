"""How good the policy is on held-out prompts."""

import logging
import math

from nemo_rl.algorithms.pass_at_k import pass_at_k
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.settings import rollout_settings
from nemo_rl.experience.batch import flatten
from nemo_rl.experience.interfaces import Rollout, RolloutGroup

logger = logging.getLogger(__name__)


def validate(run: Run) -> dict[str, float]:
    """Sample `val_num_generations_per_prompt` answers for each validation prompt with the published weights.

    accuracy: share of samples with full marks (reward >= 1), ungraded ones counting as wrong. With n > 1 samples per
    prompt also pass@k, the unbiased estimate (arXiv:2107.03374), for k = 1, 2, 4, ... n.
    """
    grpo = run.config.grpo
    if run.runner is None or not run.validation_prompts:
        return {}
    prompts = run.validation_prompts[: grpo.max_val_samples]
    samples = grpo.val_num_generations_per_prompt
    settings = rollout_settings(run.config, run.runner.tokenizer.eos_token_id, validation=True)
    groups: list[RolloutGroup] = []
    for first in range(0, len(prompts), grpo.val_batch_size):
        part = prompts[first : first + grpo.val_batch_size]
        ids = [f"validation-{run.state.step}/{prompt.prompt_id}" for prompt in part]
        groups += run.runner.run(part, ids, samples, settings)
    rollouts = flatten(groups)
    run.logger.log_rollouts([describe(r) for r in rollouts], run.state.step, kind="validation")
    _print_some(run, rollouts)
    return {f"validation/{name}": value for name, value in answer_metrics(groups, samples).items()}


def answer_metrics(groups: list[RolloutGroup], samples: int) -> dict[str, float]:
    """What `validate` reports, without its prefix."""
    rollouts = flatten(groups)
    graded = [r.reward for r in rollouts if math.isfinite(r.reward)]
    metrics = {
        "accuracy": sum(is_right(r) for r in rollouts) / len(rollouts),
        "reward": sum(graded) / len(graded) if graded else math.nan,
        "avg_length": sum(r.generated_length for r in rollouts) / len(rollouts),
        "num_samples": float(len(rollouts)),
        "ungraded": float(len(rollouts) - len(graded)),
    }
    k = 1
    while samples > 1 and k <= samples:
        metrics[f"pass@{k}"] = sum(pass_at_k(samples, sum(map(is_right, g.rollouts)), k) for g in groups) / len(groups)
        k *= 2
    return metrics


def is_right(rollout: Rollout) -> bool:
    return rollout.reward >= 1.0


def describe(rollout: Rollout) -> dict[str, object]:
    """A rollout as a person reads it."""
    return {
        "prompt_id": rollout.prompt.prompt_id,
        "messages": [dict(message) for message in rollout.messages],
        "answer": rollout.answer,
        "ground_truth": rollout.prompt.metadata.get("ground_truth"),
        "reward": rollout.reward,
        "grade_status": rollout.grade_status.value,
        "finish_reason": rollout.finish_reason.value,
        "generated_tokens": rollout.generated_length,
    }


def _print_some(run: Run, rollouts: list[Rollout]) -> None:
    for rollout in rollouts[: run.config.logger.num_val_samples_to_print]:
        conversation = "\n".join(f"[{m['role']}] {m['content']}" for m in rollout.messages)
        expected = rollout.prompt.metadata.get("ground_truth")
        logger.info("validation sample, reward %s, expected %s:\n%s", rollout.reward, expected, conversation)
