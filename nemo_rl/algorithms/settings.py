"""From the configuration to the arguments of pure functions and plain components."""

from nemo_rl.algorithms.losses import ClippedPGLoss
from nemo_rl.config.schema import MasterConfig
from nemo_rl.experience.rollouts import RolloutSettings
from nemo_rl.generation.interfaces import SamplingSettings


def make_loss(config: MasterConfig) -> ClippedPGLoss:
    """The loss of `loss_fn`. With `use_kl_in_reward` the KL is in the rewards already, so its weight here is 0."""
    fields = config.loss_fn.model_dump()
    if fields.pop("use_kl_in_reward"):
        fields["reference_policy_kl_penalty"] = 0.0
    return ClippedPGLoss(**fields)


def rollout_settings(config: MasterConfig, *, validation: bool = False) -> RolloutSettings:
    """Sampling and length limits of training or validation episodes."""
    generation = config.policy.generation
    temperature, top_p, top_k = generation.temperature, generation.top_p, generation.top_k
    if validation:
        temperature = temperature if generation.val_temperature is None else generation.val_temperature
        top_p = top_p if generation.val_top_p is None else generation.val_top_p
        top_k = top_k if generation.val_top_k is None else generation.val_top_k
    return RolloutSettings(
        max_new_tokens=generation.max_new_tokens,
        max_total_tokens=config.policy.max_total_sequence_length,
        max_turns=config.grpo.max_rollout_turns,
        sampling=SamplingSettings(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_token_ids=tuple(generation.stop_token_ids or ()),
            stop_strings=tuple(generation.stop_strings or ()),
            ignore_eos=generation.ignore_eos,
        ),
        seed=config.grpo.seed if generation.seed_per_sample else None,
    )
