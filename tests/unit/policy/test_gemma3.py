"""What is Gemma 3's alone; its forward pass, gradients and layouts are measured with the other models."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.policy import gemma3_jobs
from tests.unit.policy.matrix import Matrix
from tests.unit.policy.ranks import RankFailure
from tests.unit.policy.reference import hf_logprobs, make_batch

LOCAL, GLOBAL = "sliding_attention", "full_attention"
SAME_ROPE = {kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in (LOCAL, GLOBAL)}


@pytest.mark.parametrize("wrong", [
    {"sliding_window": 1024}, {"sliding_window": 9}, {"layer_types": [LOCAL] * 4}, {"layer_types": [GLOBAL] * 4},
    {"rope_parameters": SAME_ROPE}, {"query_pre_attn_scalar": 32},
])  # fmt: skip
def test_tiny_model_tells_a_wrong_window_or_rotary_base_from_the_right_one(models, wrong):
    right, other = (AutoModelForCausalLM.from_pretrained(models("gemma3"), **fields) for fields in ({}, wrong))
    with torch.no_grad():
        assert (hf_logprobs(right, make_batch()) - hf_logprobs(other, make_batch())).abs().max() > 0.1


def test_adapters_export_and_reload(pool, tmp_path):
    matrix = Matrix(pool, tmp_path)
    for layout in ("single", "tp2-sp"):
        cell = matrix.cell("gemma3", layout)
        assert cell.refusal is None
        assert max(cell.values.values()) < 2e-5, cell.values


@pytest.mark.parametrize(("fields", "pattern"), [
    ({}, (4, 1)),
    ({"sliding_window_pattern": 2}, (1, 1)),
    ({"layer_types": [GLOBAL] * 4}, (0, 1)),
    ({"layer_types": [LOCAL, LOCAL, GLOBAL, LOCAL]}, (2, 1)),
])  # fmt: skip
def test_layers_in_turn_are_the_models_own(pool, fields, pattern):
    assert pool.run(1, gemma3_jobs.configured, fields) == [pattern]


@pytest.mark.parametrize(("fields", "reason"), [
    ({"layer_types": [GLOBAL, LOCAL, LOCAL, GLOBAL]}, "layer_types that do not repeat"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
    ({"tie_word_embeddings": False, "attention_bias": True}, "attention_bias=True, tie_word_embeddings=False"),
    ({"rope_parameters": SAME_ROPE | {GLOBAL: {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0}}}, "rope types"),
])  # fmt: skip
def test_what_the_conversion_would_get_wrong_is_refused(pool, fields, reason):
    with pytest.raises(RankFailure, match=f"Megatron-Bridge converts no Gemma 3 with .*{reason}"):
        pool.run(1, gemma3_jobs.configured, fields)


def test_windows_of_other_models_are_refused(pool):
    with pytest.raises(RankFailure, match="no sliding-window attention; train this model on a GPU"):
        pool.run(1, gemma3_jobs.windowed)
