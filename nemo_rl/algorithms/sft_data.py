"""Model, tokenizer and conversations of an SFT run, checked against each other; batches for the trainer."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nemo_rl.algorithms.data_setup import LoadedModel, check_layout, check_starting_points, load_model
from nemo_rl.config.schema import SFTMasterConfig
from nemo_rl.data.conversations import Conversation, ConversationEncoder, Example
from nemo_rl.data.datasets.chat import load_conversations
from nemo_rl.data.datasets.response import default_split
from nemo_rl.data.errors import DataError
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.data.settings import DatasetSettings
from nemo_rl.policy.interfaces import TrainBatch


@dataclass(frozen=True)
class SFTData:
    """What the driver knows before any worker starts."""

    model: LoadedModel
    train: list[Example]
    validation: list[Example]


def load_sft_data(config: SFTMasterConfig) -> SFTData:
    """Load and check everything. Raises DataError with one sentence for what is wrong."""
    check_starting_points(config.checkpointing, config.policy.megatron_cfg.peft)
    model = load_model(config.policy)
    check_layout(config.policy, model.config)
    data = config.data
    seed = config.seed if data.train.seed is None else data.train.seed
    train, held_out = _split(
        _conversations(config, "data.train", data.train, "train", model.tokenizer), data.held_out, seed
    )
    if data.validation is not None:
        held_out = _conversations(config, "data.validation", data.validation, "test", model.tokenizer)
    encoder = ConversationEncoder(
        model.tokenizer,
        data.max_input_seq_length,
        add_bos=data.add_bos,
        add_eos=data.add_eos,
        template_kwargs=config.policy.tokenizer.chat_template_kwargs,
    )
    examples = encoder.encode_all(train)
    if len(examples) < (size := config.policy.train_global_batch_size):
        raise DataError(
            f"the dataset has {len(examples)} conversations, fewer than the {size} of one step; lower "
            "policy.train_global_batch_size or use a larger dataset"
        )
    return SFTData(model, examples, encoder.encode_all(held_out) if held_out else [])


def _conversations(config: SFTMasterConfig, key: str, dataset: Any, split: str, tokenizer: Any) -> list[Conversation]:
    default = config.data.default
    prompt, system = (
        dataset.prompt_file or default.prompt_file,
        dataset.system_prompt_file or default.system_prompt_file,
    )
    prompts = PromptBuilder(
        tokenizer, 0, None if prompt is None else Path(prompt), None if system is None else Path(system)
    )
    settings = DatasetSettings(
        dataset_name=dataset.dataset_name,
        data_path=None if dataset.data_path is None else Path(dataset.data_path),
        split=dataset.split or default_split(dataset.dataset_name, split, local=dataset.data_path is not None),
        subset=dataset.subset,
        seed=config.seed if dataset.seed is None else dataset.seed,
        input_key=dataset.input_key,
        output_key=dataset.output_key,
        size=dataset.size,
        key=key,
        task_params=dataset.task_params,
    )
    return load_conversations(settings, dataset.chat_key, prompts)


def _split(rows: list[Conversation], held_out: float, seed: int) -> tuple[list[Conversation], list[Conversation]]:
    """(training, validation): validation is a seeded random part."""
    count = round(held_out * len(rows)) if held_out < 1 else int(held_out)
    if held_out > 0 and not 0 < count < len(rows):
        raise DataError(
            f"data.train.split_validation_size={held_out} takes {count} of the {len(rows)} rows of the dataset"
        )
    chosen = set(random.Random(seed).sample(range(len(rows)), count))
    return [r for i, r in enumerate(rows) if i not in chosen], [rows[i] for i in sorted(chosen)]


def sft_batch(examples: Sequence[Example]) -> TrainBatch:
    """Right-padded batch whose loss mask is True on the assistant's tokens; what only policy gradients use is zero."""
    lengths = [len(example.token_ids) for example in examples]
    token_ids_BT = torch.zeros(len(examples), max(lengths), dtype=torch.long)
    loss_mask_BT = torch.zeros(len(examples), max(lengths), dtype=torch.bool)
    for row, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        token_ids_BT[row, :length] = torch.tensor(example.token_ids)
        loss_mask_BT[row, :length] = torch.tensor(example.loss_mask)
    loss_mask_BT[:, 0] = False  # nothing precedes the first token that could predict it
    return TrainBatch(
        token_ids_BT=token_ids_BT,
        lengths_B=torch.tensor(lengths),
        loss_mask_BT=loss_mask_BT,
        sample_mask_B=torch.ones(len(examples), dtype=torch.bool),
        advantages_B=torch.zeros(len(examples)),
        generation_logprobs_BT=torch.zeros(token_ids_BT.shape, dtype=torch.float32),
    )
