"""Rules of advantages, losses and asynchronous training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig


def groups_have_something_to_compare(config: "MasterConfig") -> Iterator[str]:
    if config.grpo.num_generations_per_prompt < 2:
        yield (
            "grpo.num_generations_per_prompt=1 leaves nothing to compare: the baseline is made of the group's other "
            "responses, so every advantage would be zero and nothing would be learned; use at least 2"
        )


def truncated_sampling_is_complete(config: "MasterConfig") -> Iterator[str]:
    loss = config.loss_fn
    kind, high, low = (
        loss.truncated_importance_sampling_type,
        loss.truncated_importance_sampling_ratio,
        loss.truncated_importance_sampling_ratio_min,
    )
    prefix = "loss_fn.truncated_importance_sampling"
    if (kind, high, low) == (None, None, None):
        return
    if not loss.use_importance_sampling_correction:
        yield f"{prefix}_* truncates a correction that is off; set loss_fn.use_importance_sampling_correction=true"
    if kind is None:
        yield f"{prefix}_type is required with {prefix}_ratio; choose tis, icepop or seq-mask-tis"
    if high is None:
        yield f"{prefix}_ratio is required with {prefix}_type={kind}"
    if kind == "tis" and low is not None:
        yield f"{prefix}_ratio_min={low} has no effect with type tis, which has no lower bound; remove it"
    if kind in ("icepop", "seq-mask-tis") and low is None:
        yield f"{prefix}_ratio_min is required with {prefix}_type={kind}"
    if high is not None and low is not None and low >= high:
        yield f"{prefix}_ratio_min={low} must be less than {prefix}_ratio={high}"


def ratio_options_agree(config: "MasterConfig") -> Iterator[str]:
    loss = config.loss_fn
    if loss.sequence_level_importance_ratios and loss.token_level_loss:
        yield "loss_fn.sequence_level_importance_ratios=true needs loss_fn.token_level_loss=false"
    if loss.disable_ppo_ratio:
        for key in ("sequence_level_importance_ratios", "force_on_policy_ratio", "ratio_clip_c"):
            if getattr(loss, key):
                yield (
                    f"loss_fn.{key} has no effect with loss_fn.disable_ppo_ratio=true, which uses no ratio; remove one"
                )


def on_policy_ratio_needs_one_step(config: "MasterConfig") -> Iterator[str]:
    batch = config.policy.train_global_batch_size
    rollouts = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    if config.loss_fn.force_on_policy_ratio and batch != rollouts:
        yield (
            f"loss_fn.force_on_policy_ratio=true needs one optimizer step per rollout batch: "
            f"policy.train_global_batch_size={batch} must equal num_prompts_per_step x "
            f"num_generations_per_prompt = {rollouts}"
        )


def samples_come_from_the_policy(config: "MasterConfig") -> Iterator[str]:
    generation = config.policy.generation
    for key, value, whole in (("top_p", generation.top_p, 1.0), ("top_k", generation.top_k, None)):
        if value != whole:
            yield (
                f"policy.generation.{key}={value} would sample from a part of the vocabulary, while the trainer's "
                f"probabilities are over all of it: every ratio would be wrong; train with "
                f"{key}={'null' if whole is None else whole} and set val_{key} for validation"
            )


def reference_is_there_when_needed(config: "MasterConfig") -> Iterator[str]:
    loss = config.loss_fn
    if config.grpo.skip_reference_policy_logprobs_calculation and loss.reference_policy_kl_penalty:
        yield (
            "grpo.skip_reference_policy_logprobs_calculation=true needs loss_fn.reference_policy_kl_penalty=0, "
            f"found {loss.reference_policy_kl_penalty}"
        )
    if loss.use_kl_in_reward and loss.force_on_policy_ratio:
        yield (
            "loss_fn.use_kl_in_reward=true needs the log-probabilities that loss_fn.force_on_policy_ratio=true leaves "
            "out; set one of them to false"
        )
    if loss.use_kl_in_reward and not loss.reference_policy_kl_penalty:
        yield "loss_fn.use_kl_in_reward=true needs loss_fn.reference_policy_kl_penalty above 0, found 0"


def async_grpo_is_possible(config: "MasterConfig") -> Iterator[str]:
    options, generation = config.grpo.async_grpo, config.policy.generation
    if not options.enabled:
        for key in ("in_flight_weight_updates", "recompute_kv_cache_after_weight_updates", "max_generation_failures"):
            if getattr(options, key):
                yield f"grpo.async_grpo.{key} has no effect while grpo.async_grpo.enabled is false; set that to true"
        return
    needs = (
        ("policy.generation.vllm_cfg.async_engine", True, generation.vllm_cfg.async_engine),
        ("policy.generation.colocated.enabled", False, generation.colocated.enabled),
        ("loss_fn.use_importance_sampling_correction", True, config.loss_fn.use_importance_sampling_correction),
    )
    for key, wanted, found in needs:
        if found is not wanted:
            yield f"grpo.async_grpo.enabled=true needs {key}={str(wanted).lower()}, found {str(found).lower()}"
    if options.recompute_kv_cache_after_weight_updates and not options.in_flight_weight_updates:
        yield "grpo.async_grpo.recompute_kv_cache_after_weight_updates=true needs in_flight_weight_updates=true"
    if config.debug.train_from_rollouts or config.debug.rollouts_only:
        yield "grpo.async_grpo.enabled=true does both halves of a step at once; debug.* needs it to be false"


RULES = (
    groups_have_something_to_compare,
    truncated_sampling_is_complete,
    ratio_options_agree,
    on_policy_ratio_needs_one_step,
    samples_come_from_the_policy,
    reference_is_there_when_needed,
    async_grpo_is_possible,
)
