"""Models whose layers Megatron-Bridge builds with transformer-engine alone: refused on a CPU, not replaced."""

import pytest
from transformers import OlmoeConfig, OlmoeForCausalLM

from tests.unit.policy import jobs
from tests.unit.policy.ranks import RankFailure
from tests.unit.policy.reference import make_batch


def test_layers_that_the_local_spec_does_not_know_are_refused(pool, tmp_path):
    config = OlmoeConfig(
        vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    OlmoeForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(
        RankFailure, match=r"layers of its own \(Megatron-Bridge's olmoe_layer_spec\).*train it on a GPU"
    ):
        pool.run(1, jobs.live_logprobs, str(tmp_path), [], make_batch())
