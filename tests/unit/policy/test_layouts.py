"""Parallel layouts change nothing but rounding: log-probabilities, loss, gradients and steps, padded and packed.

One rank with padded rows is the yardstick; it is itself held against Hugging Face here and in test_adapters.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.policy.layouts import CASES
from tests.unit.policy.reference import assemble, hf_logprobs, largest_difference, whole_logprobs

every_layout = pytest.mark.parametrize(("model", "layout", "packed"), CASES)
others = pytest.mark.parametrize(("model", "layout", "packed"), [c for c in CASES if c[1:] != ("single", False)])


@every_layout
def test_live_adapters_give_hugging_faces_logprobs_of_the_merged_export(
    reports, models, batches, model, layout, packed
):
    report = reports(model, layout, packed)
    merged = AutoModelForCausalLM.from_pretrained(models(model), dtype=torch.float32)
    base = {name: tensor.clone() for name, tensor in merged.state_dict().items()}
    outcome = merged.load_state_dict(report[0]["export"], strict=False)
    assert not outcome.unexpected_keys and set(outcome.missing_keys) <= {"lm_head.weight"}
    assert not torch.allclose(merged.model.layers[3].mlp.down_proj.weight, base["model.layers.3.mlp.down_proj.weight"])
    with torch.no_grad():
        expected = hf_logprobs(merged, batches(model), temperature=0.7)
    live = whole_logprobs([r["logprobs"] for r in report])
    assert (live - expected).abs().max() < 1e-4


@every_layout
def test_reference_is_the_base_model_with_adapters_off(reports, models, batches, model, layout, packed):
    report = reports(model, layout, packed)
    base = AutoModelForCausalLM.from_pretrained(models(model), dtype=torch.float32)
    with torch.no_grad():
        expected = hf_logprobs(base, batches(model), temperature=0.7)
    reference = whole_logprobs([r["reference"] for r in report])
    assert (reference - expected).abs().max() < 1e-4
    assert (reference - whole_logprobs([r["logprobs"] for r in report])).abs().max() > 0.1


@others
def test_adapters_start_equal_at_every_layout(reports, model, layout, packed):
    start = [assemble([r["start"] for r in reports(model, *case)]) for case in ((layout, packed), ("single", False))]
    assert largest_difference(*start) == 0.0


@others
def test_loss_and_gradient_norm_equal_one_ranks(reports, model, layout, packed):
    report, single = reports(model, layout, packed), reports(model, "single", False)[0]
    # Data-parallel ranks each hold a share of the loss; tensor and context ranks hold copies of it.
    shares = [r["first"]["loss"] for r in report if r["first"]["reports"]]
    loss = sum(shares) if layout == "dp2" else shares[0]
    assert loss == pytest.approx(single["first"]["loss"], rel=1e-5)
    assert single["first"]["highest_ratio"] > 1.3, "no token was clipped"
    for r in report:
        assert r["first"]["grad_norm"] == pytest.approx(single["first"]["grad_norm"], rel=1e-5)


@others
def test_adapter_gradients_equal_one_ranks(reports, model, layout, packed):
    grads = [assemble([r["gradients"] for r in reports(model, *c)]) for c in ((layout, packed), ("single", False))]
    assert len(grads[0]) == 4 * 4 * 2, "A and B of four linears in four layers"
    assert largest_difference(*grads) < 5e-5


@others
def test_two_optimizer_steps_equal_one_ranks(reports, model, layout, packed):
    for moment in ("after", "final"):
        values = [assemble([r[moment] for r in reports(model, *c)]) for c in ((layout, packed), ("single", False))]
        assert largest_difference(*values) < 5e-5
    start = assemble([r["start"] for r in reports(model, layout, packed)])
    assert largest_difference(start, values[0]) > 1e-3, "the steps moved nothing"


@every_layout
def test_training_and_exporting_leave_the_base_untouched(reports, model, layout, packed):
    for report in reports(model, layout, packed):
        before, after = report["fingerprints"]
        assert before == after
