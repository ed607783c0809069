"""Rules of batch sizes, sequence lengths, optimizer and schedule."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.layout import ParallelLayout

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig


def rollouts_divide_into_batches(config: "MasterConfig") -> Iterator[str]:
    prompts, generations = config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt
    batch, rollouts = config.policy.train_global_batch_size, prompts * generations
    if rollouts % batch:
        yield (
            f"policy.train_global_batch_size={batch} must divide the rollouts of a step, num_prompts_per_step x "
            f"num_generations_per_prompt = {prompts} x {generations} = {rollouts}; {rollouts} makes one optimizer step"
        )


def batches_divide_over_ranks(config: "MasterConfig") -> Iterator[str]:
    """With packing, rows are filled by token count, so only the ranks have to divide the batch."""
    try:
        dp = ParallelLayout.from_config(config).dp
    except ValueError:
        return
    batch, micro = config.policy.train_global_batch_size, config.policy.train_micro_batch_size
    if config.policy.sequence_packing.enabled:
        if batch % dp:
            yield f"policy.train_global_batch_size={batch} must be a multiple of the {dp} data-parallel ranks"
    elif batch % (micro * dp):
        yield (
            f"policy.train_global_batch_size={batch} must be a multiple of train_micro_batch_size x "
            "data-parallel ranks = "
            f"{micro} x {dp} = {micro * dp}"
        )


def lengths_fit(config: "MasterConfig") -> Iterator[str]:
    total, generation = config.policy.max_total_sequence_length, config.policy.generation
    for key, value in (
        ("data.max_input_seq_length", config.data.max_input_seq_length),
        ("policy.generation.max_new_tokens", generation.max_new_tokens),
        ("grpo.reward_shaping.max_response_length", config.grpo.reward_shaping.max_response_length),
    ):
        if value > total:
            yield f"{key}={value} must be at most policy.max_total_sequence_length={total}"
    if generation.vllm_cfg.max_model_len < total:
        yield (
            f"policy.generation.vllm_cfg.max_model_len={generation.vllm_cfg.max_model_len} must be at least "
            f"policy.max_total_sequence_length={total}, or the engine ends rollouts early"
        )
    shaping = config.grpo.reward_shaping
    if shaping.enabled and shaping.overlong_buffer_length > shaping.max_response_length:
        yield (
            f"grpo.reward_shaping.overlong_buffer_length={shaping.overlong_buffer_length} must be at most "
            f"max_response_length={shaping.max_response_length}"
        )


def packed_rows_hold_a_sequence(config: "MasterConfig") -> Iterator[str]:
    policy = config.policy
    if not policy.sequence_packing.enabled:
        return
    multiple, total = policy.make_sequence_length_divisible_by, policy.max_total_sequence_length
    longest = -(-total // multiple) * multiple
    for key in ("train_mb_tokens", "logprob_mb_tokens"):
        tokens = getattr(policy.sequence_packing, key)
        if tokens < longest:
            yield (
                f"policy.sequence_packing.{key}={tokens} cannot hold the longest sequence: "
                f"max_total_sequence_length={total}, "
                f"padded to a multiple of {multiple}, is {longest}"
            )


def chunks_need_deferred_logits(config: "MasterConfig") -> Iterator[str]:
    if config.policy.logprob_chunk_size is not None and not config.policy.megatron_cfg.defer_fp32_logits:
        yield (
            f"policy.logprob_chunk_size={config.policy.logprob_chunk_size} needs "
            "policy.megatron_cfg.defer_fp32_logits=true; "
            "otherwise all logits are held in float32 anyway"
        )


def optimizer_agrees_with_the_policy(config: "MasterConfig") -> Iterator[str]:
    policy, optimizer = config.policy, config.policy.megatron_cfg.optimizer
    if optimizer.clip_grad != policy.max_grad_norm:
        yield (
            f"policy.megatron_cfg.optimizer.clip_grad={optimizer.clip_grad} differs from "
            f"policy.max_grad_norm={policy.max_grad_norm}; set only the latter"
        )
    if optimizer.bf16 is not None and optimizer.bf16 != (policy.precision == "bfloat16"):
        yield (
            f"policy.megatron_cfg.optimizer.bf16={str(optimizer.bf16).lower()} contradicts "
            f"policy.precision={policy.precision}; leave bf16 null"
        )
    if policy.megatron_cfg.pipeline_dtype != policy.precision:
        yield (
            f"policy.megatron_cfg.pipeline_dtype={policy.megatron_cfg.pipeline_dtype} must equal "
            f"policy.precision={policy.precision}"
        )


def learning_rates_are_ordered(config: "MasterConfig") -> Iterator[str]:
    optimizer, scheduler = config.policy.megatron_cfg.optimizer, config.policy.megatron_cfg.scheduler
    if optimizer.min_lr > optimizer.lr:
        yield f"policy.megatron_cfg.optimizer.min_lr={optimizer.min_lr} must be at most lr={optimizer.lr}"
    if scheduler.lr_warmup_init > optimizer.lr:
        yield (
            f"policy.megatron_cfg.scheduler.lr_warmup_init={scheduler.lr_warmup_init} must be at most "
            f"policy.megatron_cfg.optimizer.lr={optimizer.lr}"
        )
    if scheduler.lr_warmup_iters >= scheduler.lr_decay_iters:
        yield (
            f"policy.megatron_cfg.scheduler.lr_warmup_iters={scheduler.lr_warmup_iters} must be less than "
            f"lr_decay_iters={scheduler.lr_decay_iters}, which counts the warm-up too"
        )
    decays = (scheduler.start_weight_decay, scheduler.end_weight_decay)
    if scheduler.weight_decay_incr_style == "constant" and decays[0] != decays[1]:
        yield (
            f"policy.megatron_cfg.scheduler.start_weight_decay={decays[0]} and end_weight_decay={decays[1]} "
            "must be equal "
            "when weight_decay_incr_style is constant"
        )


ROLLOUT_RULES = (rollouts_divide_into_batches, lengths_fit)
TRAINER_RULES = (
    batches_divide_over_ranks,
    packed_rows_hold_a_sequence,
    chunks_need_deferred_logits,
    optimizer_agrees_with_the_policy,
    learning_rates_are_ordered,
)
