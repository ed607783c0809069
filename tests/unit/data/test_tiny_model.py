"""Tiny models made on the spot: loadable, reproducible, and for the quickstart, at chance."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from nemo_rl.data.datasets import load_records
from nemo_rl.data.errors import DataError
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.data.settings import DatasetSettings
from nemo_rl.data.tokenizer import load_tokenizer, validate_model_folder
from nemo_rl.utils.tiny_model import ARCHITECTURES, make_tiny_model, resolve_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tie", [False, True])
def test_folder_loads_with_its_tokenizer(tmp_path, architecture, tie):
    model = make_tiny_model(tmp_path, architecture=architecture, tie=tie, dtype="bfloat16", num_hidden_layers=2)
    tokenizer = load_tokenizer(tmp_path)
    validate_model_folder(tmp_path, tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype is torch.bfloat16
    assert loaded.config.num_hidden_layers == 2 and loaded.config.tie_word_embeddings is tie
    tokens = torch.tensor([tokenizer("12 + 7\n")["input_ids"]])
    assert tokens.shape == (1, 7)  # one token per character, white space too, in every architecture
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)


def test_seed_decides_the_weights_and_nothing_else_moves(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    a, b, c = (make_tiny_model(tmp_path, seed=seed, num_hidden_layers=1) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(a.lm_head.weight, b.lm_head.weight)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)


def test_names_are_resolved(tmp_path):
    folder = resolve_model("tiny-random-qwen3", tmp_path)
    written = (folder / "config.json").stat().st_mtime_ns
    assert resolve_model("tiny-random-qwen3", tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == written
    assert resolve_model("Qwen/Qwen3-8B-Base", tmp_path) == "Qwen/Qwen3-8B-Base"
    with pytest.raises(DataError, match="did you mean 'tiny-random-qwen3'"):
        resolve_model("tiny-random-qwen4", tmp_path)


def test_digits_model_answers_in_form_and_at_chance(tmp_path):
    folder = resolve_model("tiny-digits-qwen3", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = PromptBuilder(load_tokenizer(folder), 100).build(load_records(DatasetSettings("tiny_max", size=512)))
    tokens = torch.tensor([prompt.token_ids for prompt in prompts])
    tokenizer = load_tokenizer(folder)
    with torch.no_grad():
        probabilities = model(tokens).logits[:, -1].softmax(-1)
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    right = tokenizer.convert_tokens_to_ids([prompt.metadata["ground_truth"] for prompt in prompts])
    p_right = probabilities[torch.arange(len(right)), right].mean().item()
    assert probabilities[:, digits].sum(-1).mean() > 0.98
    assert 0.18 < p_right < 0.30
