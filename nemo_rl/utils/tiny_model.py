"""Tiny Hugging Face checkpoints made on the spot: for the quickstart and for tests. Nothing is downloaded."""

import os
import string
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
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
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}
VOCAB_SIZE = 128
PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A role is one token, so that a prompt of seven characters has ten tokens and a step takes milliseconds."""
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
OWN_SIZE: dict[str, dict[str, Any]] = {
    "gemma3": {
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        },
    },
}
"""A window shorter than most rows, and every second layer global, with stretched positions as in the larger published
models: who forgets one of these computes something else."""
ALWAYS_TIED = ("gemma3",)


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable character, one per role, and a chat template."""
    characters = [char for char in string.printable if char not in "\r\x0b\x0c"]
    tokens = [PAD, END, UNKNOWN, *ROLES, *characters]
    tokens += [f"<|unused{index}|>" for index in range(VOCAB_SIZE - len(tokens))]
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=list(ROLES),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_tiny_model(architecture: str, seed: int, tie: bool | None = None, **size: Any) -> PreTrainedModel:
    """A random model in memory, the same for the same seed."""
    config_class, model_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=VOCAB_SIZE,
        rms_norm_eps=1e-6,
        tie_word_embeddings=architecture in ALWAYS_TIED if tie is None else tie,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **(SIZE | deepcopy(OWN_SIZE.get(architecture, {})) | size),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # norms of exactly one and biases of exactly zero would hide that somebody forgot them
                if "norm" in name or name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_tiny_model(model: PreTrainedModel, folder: Path) -> None:
    """Weights, config and tokenizer as a Hugging Face folder."""
    model.save_pretrained(folder)
    make_tiny_tokenizer().save_pretrained(folder)


def make_tiny_model(
    folder: Path,
    *,
    architecture: str = "qwen3",
    seed: int = 0,
    tie: bool | None = None,
    dtype: str = "float32",
    **size: Any,
) -> PreTrainedModel:
    """Writes a random model and its tokenizer to `folder`; `size` overrides entries of SIZE or any config field.

    Embeddings are tied where the architecture always ties them, unless `tie` says otherwise.
    """
    model = new_tiny_model(architecture, seed, tie, **size)
    for parameter in model.parameters():  # not model.to(): that would round the rotary frequencies too
        parameter.data = parameter.data.to(getattr(torch, dtype))
    save_tiny_model(model, folder)
    return model


def make_digits_model(folder: Path, *, architecture: str = "qwen3", seed: int = 1, steps: int = 200) -> PreTrainedModel:
    """A tiny model that answers a row of digits with one of them, at random: the form is known, the task is not.

    A few seconds of supervised steps replace what pretraining gives a real model. Without them a random model
    answers in one of 128 tokens at random and reinforcement learning has almost nothing to reinforce. The right
    digit is never preferred: on tiny_max it starts at chance, 25 %.
    """
    model = new_tiny_model(architecture, seed, num_hidden_layers=2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small lose more by waiting for each other than they gain
    _teach_the_form(model, steps, seed)
    torch.set_num_threads(threads)
    save_tiny_model(model, folder)
    return model


def _teach_the_form(model: PreTrainedModel, steps: int, seed: int) -> None:
    tokenizer = make_tiny_tokenizer()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    warmup, peak_lr = 20, 5e-3
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * min((step + 1) / warmup, 1 - step / steps)
        tokens = _digit_examples(tokenizer, 64, generator)
        logits = model(tokens[:, :-1]).logits[:, -2:]  # the answer and its end
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, -2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _digit_examples(tokenizer: PreTrainedTokenizerFast, count: int, generator: torch.Generator) -> torch.Tensor:
    """Chats "3 8 1 5" → one of the four, as (count, tokens)."""
    digits = torch.rand(count, 10, generator=generator).argsort(1)[:, :4]
    answers = digits.gather(1, torch.randint(0, 4, (count, 1), generator=generator))
    texts = [
        f"<|user|>{' '.join(map(str, row))}{END}<|assistant|>{answer}{END}"
        for row, (answer,) in zip(digits.tolist(), answers.tolist(), strict=True)
    ]
    return torch.tensor(tokenizer(texts)["input_ids"])


MAKERS: dict[str, Callable[..., PreTrainedModel]] = {
    "tiny-random": make_tiny_model,
    "tiny-digits": make_digits_model,
}


def resolve_model(name: str, cache_dir: Path) -> Path | str:
    """`name` itself for Hub ids and folders; a folder in `cache_dir`, made on first use, for

    "tiny-random-<architecture>": random weights;
    "tiny-digits-<architecture>": the quickstart's model, which knows how an answer looks but not which is right.
    """
    family, _, architecture = name.rpartition("-")
    if family not in MAKERS:
        return name
    if architecture not in ARCHITECTURES:
        known = [f"{family}-{key}" for key in ARCHITECTURES]
        raise DataError(f"unknown tiny model {name!r}{did_you_mean(name, known)}")
    folder = cache_dir / name
    if not folder.is_dir():
        cache_dir.mkdir(parents=True, exist_ok=True)
        # written aside and renamed: an interrupted run leaves no half model, two runs at once do not meet
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".making-") as scratch:
            made = Path(scratch) / "model"
            MAKERS[family](made, architecture=architecture)
            if not folder.is_dir():
                os.rename(made, folder)
    return folder
