"""What a supervised fine-tuning run, or an evaluation, will do: the second half of their `--dry-run`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.layout import GenerationLayout, ParallelLayout
from nemo_rl.config.plan import count, file_lines, model_lines, paragraphs

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import EvalMasterConfig, SFTMasterConfig


def describe_sft_plan(config: "SFTMasterConfig") -> str:
    """The plan as plain text, one subject per paragraph."""
    return paragraphs(
        (
            ("Model", model_lines(config)),
            ("Devices", _devices(config)),
            ("One step", _step(config)),
            ("Data", _data(config)),
            ("Length and files", _length(config)),
        )
    )


def _devices(config: "SFTMasterConfig") -> Iterator[str]:
    layout = ParallelLayout.from_config(config)
    cluster = config.cluster
    yield f"{count(cluster.num_nodes, 'node')} x {cluster.gpus_per_node}, accelerator {cluster.accelerator}"
    axes = f"tensor {layout.tp} x pipeline {layout.pp} x context {layout.cp} x data {layout.dp}"
    yield f"policy: {count(layout.world, 'rank')} = {axes}; no rollout engine"


def _step(config: "SFTMasterConfig") -> Iterator[str]:
    policy, layout = config.policy, ParallelLayout.from_config(config)
    batch = policy.train_global_batch_size
    cut = (
        f"packed into rows of {policy.sequence_packing.train_mb_tokens:,} tokens"
        if policy.sequence_packing.enabled
        else f"in micro-batches of {policy.train_micro_batch_size}"
    )
    yield (f"{count(batch, 'conversation')}, one optimizer step: {batch // layout.dp} per data-parallel rank, {cut}")
    yield "loss: negative log-likelihood of assistant tokens, averaged over those of the global batch"


def _data(config: "SFTMasterConfig") -> Iterator[str]:
    data, sft = config.data, config.sft
    yield f"training: {data.train.dataset_name}; conversations of up to {data.max_input_seq_length:,} tokens"
    part = f"{data.held_out:.0%}" if data.held_out < 1 else f"{data.held_out:g} rows"
    source = data.validation.dataset_name if data.validation else f"{part} of the training set, held out"
    when = [f"every {sft.val_period} steps"] if sft.val_period > 0 else []
    when += ["at the start"] if sft.val_at_start else []
    when += ["at the end"] if sft.val_at_end else []
    size = f"{sft.val_batches} x {sft.val_global_batch_size} of" if sft.val_batches > 0 else "all of"
    yield f"validation: {size} {source}, {', '.join(when)}" if when else "validation: none"


def _length(config: "SFTMasterConfig") -> Iterator[str]:
    sft = config.sft
    yield f"ends after {count(sft.max_num_steps, 'step')} or {count(sft.max_num_epochs, 'epoch')} of the data"
    yield from file_lines(config)


def describe_eval_plan(config: "EvalMasterConfig") -> str:
    """The plan as plain text, one subject per paragraph."""
    return paragraphs((("Model", _evaluated(config)), ("Problems", _problems(config)), ("Files", _files(config))))


def _evaluated(config: "EvalMasterConfig") -> Iterator[str]:
    evaluated, engine = config.eval, GenerationLayout.from_config(config)
    if evaluated.checkpoint is not None:
        yield f"{evaluated.checkpoint}: the trainer loads its adapters and sends merged weights"
    elif evaluated.adapter_path is not None:
        how = "applied by vLLM" if evaluated.adapter == "native" else "merged in float32 into a copy of the weights"
        yield f"{config.policy.model_name} with the adapter in {evaluated.adapter_path}, {how}"
    else:
        yield f"{config.policy.model_name}, as it is"
    yield f"{count(engine.replicas, 'vLLM replica')} of tensor {engine.tp}, accelerator {config.cluster.accelerator}"


def _problems(config: "EvalMasterConfig") -> Iterator[str]:
    generation, tries = config.policy.generation, config.eval.num_tests_per_prompt
    temperature = generation.temperature if generation.val_temperature is None else generation.val_temperature
    how = "greedily" if temperature == 0 else f"at temperature {temperature:g}"
    length = f"up to {generation.max_new_tokens:,} tokens"
    yield f"{config.data.dataset_name}, {count(tries, 'response')} each, sampled {how}, {length}"


def _files(config: "EvalMasterConfig") -> Iterator[str]:
    yield f"samples.jsonl and metrics.json in {config.eval.save_path}"
