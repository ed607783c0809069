"""What a run will do, in words and numbers, before anything starts: the second half of `--dry-run`."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.layout import (
    BatchArithmetic,
    GenerationLayout,
    ParallelLayout,
    batch_arithmetic,
    generation_world_size,
    policy_world_size,
)

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig, TrainingConfig

__all__ = [
    "BatchArithmetic",
    "GenerationLayout",
    "ParallelLayout",
    "batch_arithmetic",
    "describe_plan",
    "generation_world_size",
    "policy_world_size",
]


def describe_plan(config: "MasterConfig") -> str:
    """The plan as plain text, one subject per paragraph."""
    parts = (
        ("Model", model_lines(config)),
        ("Devices", _devices(config)),
        ("One step", _step(config)),
        ("Sequences", _sequences(config)),
        ("Weights", _weights(config)),
        ("Data", _data(config)),
        ("Length and files", _length(config)),
    )
    return paragraphs(parts)


def paragraphs(parts: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Titles, each with its lines indented below it."""
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in parts)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def model_lines(config: "TrainingConfig") -> Iterator[str]:
    megatron = config.policy.megatron_cfg
    peft, optimizer, scheduler = megatron.peft, megatron.optimizer, megatron.scheduler
    yield f"{config.policy.model_name} in {config.policy.precision}; master weights in {optimizer.params_dtype}"
    if (base := config.checkpointing.pretrained_checkpoint) is not None:
        yield f"base weights from the Megatron checkpoint {base}"
    if peft.enabled:
        where = ", ".join(peft.target_modules) or f"every linear module except {peft.exclude_modules or 'none'}"
        scale = f"{peft.alpha:g} / {peft.dim} = {peft.alpha / peft.dim:g}"
        yield f"LoRA of rank {peft.dim} on {where}; scale alpha / dim = {scale}"
        start = config.checkpointing.adapter_path
        yield "the base model stays frozen" + (f"; adapters start from {start}" if start else "")
    else:
        yield "all parameters are trained (policy.megatron_cfg.peft.enabled is false)"
    warmup = f"after {scheduler.lr_warmup_iters} warm-up steps from {scheduler.lr_warmup_init:g}"
    yield f"{optimizer.optimizer}, learning rate {optimizer.lr:g} {warmup}, then {scheduler.lr_decay_style}"


def _devices(config: "MasterConfig") -> Iterator[str]:
    cluster, policy, engine = config.cluster, ParallelLayout.from_config(config), GenerationLayout.from_config(config)
    total = cluster.gpus_per_node * cluster.num_nodes
    yield (
        f"{count(cluster.num_nodes, 'node')} x {cluster.gpus_per_node} = {count(total, 'device')}, "
        f"accelerator {cluster.accelerator}"
    )
    shared = config.policy.generation.colocated.enabled
    yield (
        "policy and engine use the same devices in turn (colocated)"
        if shared
        else f"policy on {count(policy.world, 'device')}, engine on {engine.world} others (not colocated)"
    )
    axes = f"tensor {policy.tp} x pipeline {policy.pp} x context {policy.cp} x data {policy.dp}"
    experts = f", experts over {policy.ep}" if policy.ep > 1 else ""
    yield f"policy: {count(policy.world, 'rank')} = {axes}{experts}"
    yield (
        f"engine: {count(engine.replicas, 'vLLM replica')} of tensor {engine.tp} x pipeline {engine.pp}, "
        f"{'fed request by request' if config.policy.generation.vllm_cfg.async_engine else 'fed batch by batch'}"
    )


def _step(config: "MasterConfig") -> Iterator[str]:
    batch, options = batch_arithmetic(config), config.grpo.async_grpo
    yield (
        f"{count(batch.prompts, 'prompt')} x {count(batch.generations, 'generation')} = "
        f"{count(batch.rollouts, 'rollout')}, sampled at temperature {config.policy.generation.temperature:g}"
    )
    yield (
        f"{batch.rollouts:,} rollouts / global batch {config.policy.train_global_batch_size} = "
        f"{count(batch.optimizer_steps, 'optimizer step')} per rollout batch"
    )
    micro = config.policy.train_micro_batch_size
    cut = (
        f"packed into rows of {config.policy.sequence_packing.train_mb_tokens:,} tokens"
        if batch.micro_batches is None
        else f"{batch.micro_batches:,} x {micro} in a row (micro-batches)"
    )
    yield f"each optimizer step: {count(batch.rollouts_per_rank, 'rollout')} per data-parallel rank, {cut}"
    if options.enabled:
        age = count(options.max_trajectory_age_steps, "step")
        yield f"generation runs all the time; rollouts are at most {age} old"
    penalty = config.loss_fn.reference_policy_kl_penalty
    yield f"KL penalty {penalty:g} to the {config.checkpointing.reference} model" if penalty else "no KL penalty"


def _sequences(config: "MasterConfig") -> Iterator[str]:
    generation, total = config.policy.generation, config.policy.max_total_sequence_length
    yield (
        f"at most {total:,} tokens: prompts up to {config.data.max_input_seq_length:,} (longer ones are left out), "
        f"responses up to {generation.max_new_tokens:,}"
    )
    yield f"padded to multiples of {config.policy.make_sequence_length_divisible_by}"


def _weights(config: "MasterConfig") -> Iterator[str]:
    colocated, sync = config.policy.generation.colocated.enabled, config.weight_sync
    ways = ("CUDA IPC", "shared memory") if colocated else ("NCCL broadcast", "gloo broadcast")
    way = {"cuda": ways[0], "cpu": ways[1], "auto": f"{ways[0]} (on CPU: {ways[1]})"}[config.cluster.accelerator]
    what = (
        "base + scale x B A, merged in float32 into a copy"
        if config.policy.megatron_cfg.peft.enabled
        else "all weights"
    )
    yield f"policy -> engine by {way}: {what}"
    asynchronous = config.grpo.async_grpo
    if asynchronous.enabled:
        yield (
            "while generations run"
            if asynchronous.in_flight_weight_updates
            else "with the engine paused between generations"
        )
    check = (
        f"every {sync.verify_every} syncs all tensors are compared" if sync.verify_every else "tensors are not compared"
    )
    yield (
        f"checksums {'on' if sync.checksums else 'off'}; {check}; a sync that takes over "
        f"{sync.deadline_s:g} s is an error"
    )


def _data(config: "MasterConfig") -> Iterator[str]:
    train, validation, grpo = config.data.train, config.data.validation, config.grpo
    environment = train.env_name or config.data.default.env_name
    scored = f"environment {environment}" if environment else "the dataset's own environment"
    yield f"training: {train.dataset_name}, scored by {scored}"
    held_out = config.data.held_out
    part = f"{held_out:.0%}" if held_out < 1 else f"{held_out:g} rows"
    source = validation.dataset_name if validation else f"{part} of the training set, held out"
    when = [f"every {grpo.val_period} steps"] if grpo.val_period > 0 else []
    when += ["at the start"] if grpo.val_at_start else []
    when += ["at the end"] if grpo.val_at_end else []
    yield f"validation: {source}, {', '.join(when)}" if when else "validation: none"


def _length(config: "MasterConfig") -> Iterator[str]:
    grpo = config.grpo
    yield f"ends after {count(grpo.max_num_steps, 'step')} or {count(grpo.max_num_epochs, 'epoch')} of the data"
    yield from file_lines(config)


def file_lines(config: "TrainingConfig") -> Iterator[str]:
    """Checkpoints and logs."""
    checkpointing = config.checkpointing
    if checkpointing.enabled:
        kept = "all" if checkpointing.keep_top_k is None else f"the best {checkpointing.keep_top_k}"
        yield f"a checkpoint every {checkpointing.save_period} steps in {checkpointing.checkpoint_dir}, {kept} kept"
    else:
        yield "no checkpoints"
    trackers = [name for name in ("wandb", "tensorboard", "mlflow") if getattr(config.logger, f"{name}_enabled")]
    yield f"logs in {config.logger.log_dir}" + (f", also to {', '.join(trackers)}" if trackers else "")
