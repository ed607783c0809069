"""Training in float16: finer rounding than bfloat16's, and a loss scale that costs no step when gradients overflow."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.policy import float16_jobs, jobs
from tests.unit.policy.layouts import LAYOUTS, PACKED, TEMPERATURE
from tests.unit.policy.reference import assemble, hf_logprobs, largest_difference, whole_logprobs


@pytest.mark.parametrize("layout", ["single", "tp2-pp2"])
def test_an_overflow_costs_no_step(pool, models, batches, layout):
    world, overrides = LAYOUTS[layout]
    arguments = (str(models("qwen3")), [TEMPERATURE, *overrides, *PACKED], batches("qwen3"))
    calm = pool.run(world, float16_jobs.train_at_scale, *arguments, 2.0**12)
    stormy = pool.run(world, float16_jobs.train_at_scale, *arguments, 2.0**40)
    assert {r["scale"] for r in calm} == {2.0**12} and stormy[0]["scale"] < 2.0**30
    assert stormy[0]["first"]["grad_norm"] == pytest.approx(calm[0]["first"]["grad_norm"], rel=1e-2)
    assert all(r["left"] == [] for r in calm), "gradients of float32 masters, which offloading does not know"
    gradients = assemble([r["gradients"] for r in stormy])
    assert largest_difference(gradients, assemble([r["gradients"] for r in calm])) < 1e-2


def test_the_loss_scale_survives_a_checkpoint(pool, models, batches, tmp_path):
    model, folder = str(models("qwen3")), str(tmp_path / "policy")
    (left,) = pool.run(1, float16_jobs.overflow_and_save, model, batches("qwen3"), folder)
    assert pool.run(1, float16_jobs.loaded_scale, model, folder) == [left] and left not in (2.0**40, 2.0**16)


@pytest.mark.parametrize(("precision", "words"), [
    ("float16", "were not finite"), ("bfloat16", "the gradients is nan"), ("float32", "the gradients is nan"),
])  # fmt: skip
def test_gradients_that_are_no_numbers_end_the_run(pool, models, batches, precision, words):
    arguments = (str(models("qwen3")), batches("qwen3"), precision)
    assert words in pool.run(1, float16_jobs.train_on_nan, *arguments)[0]


def test_float16_is_nearer_to_float32_than_bfloat16(pool, models, batches):
    batch = batches("qwen3")
    with torch.no_grad():
        exact = hf_logprobs(AutoModelForCausalLM.from_pretrained(models("qwen3"), dtype=torch.float32), batch)
    errors = {}
    for precision in ("bfloat16", "float16"):
        settings = [f"policy.precision={precision}", "policy.megatron_cfg.peft.enabled=false"]
        live = pool.run(1, jobs.live_logprobs, str(models("qwen3")), settings, batch)
        errors[precision] = float((whole_logprobs(live) - exact).abs().mean())
    assert errors["float16"] < errors["bfloat16"] / 4, errors
