"""`loss_fn`: the clipped policy-gradient loss."""

from typing import Literal

from pydantic import Field

from nemo_rl.config.schema.section import Section


class LossConfig(Section):
    reference_policy_kl_penalty: float = Field(
        0.01, ge=0, description="Weight of the KL penalty that holds the policy near the reference."
    )
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = Field(
        "k3", description="Estimator of that KL: k1 = log-ratio, k2 = half its square, k3 = ratio - 1 - log-ratio."
    )
    kl_input_clamp_value: float | None = Field(
        20.0, gt=0, description="Clamp the log-ratio to +/- this before the estimator; null for no clamp."
    )
    kl_output_clamp_value: float | None = Field(
        10.0, gt=0, description="Clamp each token's KL to +/- this; null for no clamp."
    )
    ratio_clip_min: float = Field(
        0.2, ge=0, lt=1, description="The probability ratio is clipped from below at 1 - this."
    )
    ratio_clip_max: float = Field(0.2, ge=0, description="The probability ratio is clipped from above at 1 + this.")
    ratio_clip_c: float | None = Field(
        None,
        gt=1,
        description="Dual clip: bounds the loss of a negative advantage at this many times it; null for none.",
    )
    use_on_policy_kl_approximation: bool = Field(
        False,
        description="Weight the KL penalty by the current policy's importance ratio, for rollouts that are stale.",
    )
    use_importance_sampling_correction: bool = Field(
        False,
        description="Weight each token by trainer/engine probability, correcting what the engine computes differently.",
    )
    truncated_importance_sampling_ratio: float | None = Field(
        None, gt=0, description="Upper bound of that weight; null for no bound."
    )
    truncated_importance_sampling_ratio_min: float | None = Field(
        None, ge=0, description="Lower bound of that weight, for the types `icepop` and `seq-mask-tis`."
    )
    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = Field(
        None,
        description=(
            "What happens outside the bounds: `tis` clamps, `icepop` zeroes the token, `seq-mask-tis` drops "
            "the sequence."
        ),
    )
    sequence_level_importance_ratios: bool = Field(
        False, description="One probability ratio per sequence instead of per token (GSPO)."
    )
    token_level_loss: bool = Field(
        True,
        description="Average the loss over all tokens of the batch; false averages per sequence, then over sequences.",
    )
    force_on_policy_ratio: bool = Field(
        False,
        description="Take the ratio as exactly 1: for one optimizer step per rollout batch, saves a forward pass.",
    )
    use_kl_in_reward: bool = Field(
        False, description="Subtract the KL from the reward instead of adding it to the loss."
    )
    disable_ppo_ratio: bool = Field(
        False, description="Plain REINFORCE: advantage times log-probability, without a probability ratio or clips."
    )
