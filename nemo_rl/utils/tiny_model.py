"""Tiny Hugging Face checkpoints made on the spot: for the quickstart and for tests. Nothing is downloaded."""

import os
import string
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nemo_rl.data.errors import DataError, did_you_mean

ARCHITECTURES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}
NAME_PREFIX = "tiny-random-"
VOCAB_SIZE = 128
SPECIAL_TOKENS = ("<|pad|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
}


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable character, the special tokens of ChatML, and its chat template."""
    characters = [char for char in string.printable if char not in "\r\x0b\x0c"]
    tokens = [*SPECIAL_TOKENS, *characters]
    tokens += [f"<|unused{index}|>" for index in range(VOCAB_SIZE - len(tokens))]
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<|endoftext|>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_tiny_model(
    folder: Path,
    *,
    architecture: str = "qwen3",
    seed: int = 0,
    tie: bool = False,
    dtype: str = "float32",
    **size: Any,
) -> PreTrainedModel:
    """Writes a random model and its tokenizer to `folder`; `size` overrides entries of SIZE or any config field."""
    config_class, model_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=VOCAB_SIZE,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tie,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **(SIZE | size),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:  # weights of exactly one would hide a forgotten norm
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    make_tiny_tokenizer().save_pretrained(folder)
    return model


def resolve_model(name: str, cache_dir: Path) -> Path | str:
    """`name` itself for Hub ids and folders; for "tiny-random-<architecture>" a folder in `cache_dir`, made if new."""
    if not name.startswith(NAME_PREFIX):
        return name
    architecture = name.removeprefix(NAME_PREFIX)
    if architecture not in ARCHITECTURES:
        known = [NAME_PREFIX + key for key in ARCHITECTURES]
        raise DataError(f"unknown tiny model {name!r}{did_you_mean(name, known)}")
    folder = cache_dir / name
    if not folder.is_dir():
        cache_dir.mkdir(parents=True, exist_ok=True)
        # written aside and renamed: an interrupted run leaves no half model, two runs at once do not meet
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".making-") as scratch:
            made = Path(scratch) / "model"
            make_tiny_model(made, architecture=architecture)
            if not folder.is_dir():
                os.rename(made, folder)
    return folder
