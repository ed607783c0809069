"""`grpo`: how many rollouts a step has, how advantages are made of them, when to validate."""

from pydantic import Field

from nemo_rl.config.schema.section import Section, derived, group


class RewardShapingConfig(Section):
    enabled: bool = Field(False, description="Lower the reward of responses that come close to the length limit.")
    overlong_buffer_length: int = Field(
        128, ge=1, description="Tokens before `max_response_length` over which the penalty grows from zero to full."
    )
    overlong_buffer_penalty: float = Field(
        1.0, ge=0, description="Penalty of a response that is `max_response_length` tokens long."
    )
    max_response_length: int = derived(
        "${policy.max_total_sequence_length}",
        ge=1,
        description="Response length in tokens at which the full penalty applies.",
    )


class AsyncGRPOConfig(Section):
    enabled: bool = Field(
        False,
        description="Generate on its own devices all the time, while the policy trains on slightly older rollouts.",
    )
    max_trajectory_age_steps: int = Field(
        1, ge=1, description="Oldest rollout, in optimizer-side weight versions, that a step may train on."
    )
    in_flight_weight_updates: bool = Field(
        False, description="Update the engine in the middle of running generations instead of waiting for them to end."
    )
    recompute_kv_cache_after_weight_updates: bool = Field(
        False,
        description="After an in-flight update, recompute the KV cache of running generations with the new weights.",
    )
    max_generation_failures: int = Field(
        0, ge=0, description="Prompt groups whose generation may fail before the run ends with the engine's own error."
    )
    starvation_deadline_s: float = Field(
        1800.0, gt=0, description="Seconds that training waits for a step's rollouts before the run ends, saying why."
    )


class GRPOConfig(Section):
    num_prompts_per_step: int = Field(32, ge=1, description="Prompts drawn from the dataset in one step.")
    num_generations_per_prompt: int = Field(
        16, ge=1, description="Responses sampled for each prompt; together they form the group that is compared."
    )
    max_rollout_turns: int = Field(
        1, ge=1, description="Most model turns in one episode; above 1 the environment may answer and the model go on."
    )
    max_num_epochs: int = Field(1, ge=1, description="Passes over the training set after which the run ends.")
    max_num_steps: int = Field(1_000_000, ge=1, description="Steps after which the run ends.")
    normalize_rewards: bool = Field(
        True, description="Divide advantages by the standard deviation of the group's rewards, where that is not zero."
    )
    use_leave_one_out_baseline: bool = Field(
        True, description="Compare each response with the mean of the others of its group, not with the mean of all."
    )
    val_period: int = Field(10, ge=-1, description="Validate every so many steps; 0 and -1 mean never.")
    val_at_start: bool = Field(False, description="Validate before the first step.")
    val_at_end: bool = Field(False, description="Validate after the last step.")
    max_val_samples: int = Field(256, ge=1, description="Most validation prompts used in one validation.")
    val_batch_size: int = Field(256, ge=1, description="Validation prompts generated at once.")
    val_num_generations_per_prompt: int = Field(
        1, ge=1, description="Responses per validation prompt; above 1, pass@k is reported too."
    )
    overlong_filtering: bool = Field(
        False,
        description="Leave responses that were cut at the length limit out of the loss (their reward still counts).",
    )
    seed: int = Field(42, ge=0, description="Seed of everything random: data order, adapters, sampling.")
    skip_reference_policy_logprobs_calculation: bool = Field(
        False, description="Do not compute reference log-probabilities; needs `loss_fn.reference_policy_kl_penalty: 0`."
    )
    reward_shaping: RewardShapingConfig = group(RewardShapingConfig, "Soft penalty for long responses.")
    async_grpo: AsyncGRPOConfig = group(AsyncGRPOConfig, "Generation and training at the same time.")
