"""Entries of the model's config that the user replaces, beside Hugging Face's model with the same config."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.policy import jobs
from tests.unit.policy.ranks import RankFailure
from tests.unit.policy.reference import hf_logprobs, make_batch


def overrides(config: dict[str, Any]) -> list[str]:
    """As on a command line, where keys have no quotes. The adapters add nothing."""
    return [f"policy.hf_config_overrides={config}".replace("'", ""), f"{jobs.PEFT}.lora_B_init_method=zero"]


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(("name", "override"), [
    ("qwen3", {"rms_norm_eps": 0.5}),
    ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8192, "rope_theta": 1e6}}),
])  # fmt: skip
def test_the_trainers_model_is_hugging_faces_with_the_same_overrides(pool, models, name, override):
    model, batch = models(name), make_batch()
    (live, *_) = pool.run(1, jobs.live_logprobs, str(model), overrides(override), batch)
    right = hf_logprobs(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **override), batch)
    other = hf_logprobs(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), batch)
    assert (live - right).abs().max() < 1e-4
    assert (other - right).abs().max() > 1e-2


@pytest.mark.parametrize(("name", "rope"), [
    ("qwen3", {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ("llama", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}),
    ("llama", LLAMA3 | {"original_max_position_embeddings": 32}),
])  # fmt: skip
def test_positions_that_megatron_would_turn_otherwise_than_the_engine_are_refused(pool, models, name, rope):
    with pytest.raises(RankFailure, match=f"does not turn the positions of a {name} model by"):
        pool.run(1, jobs.live_logprobs, str(models(name)), overrides({"rope_parameters": rope}), make_batch())
