"""Adapters against closed forms and against autograd through Hugging Face: golden cases and their neighbours."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from nemo_rl.algorithms.losses import Normalizer
from nemo_rl.algorithms.settings import make_loss
from nemo_rl.config.loader import load_config
from tests.unit.policy import adapter_jobs
from tests.unit.policy.jobs import BASICS, CONFIG, MEGATRON, PEFT
from tests.unit.policy.layouts import LAYOUTS, PACKED, TEMPERATURE
from tests.unit.policy.ranks import RankFailure
from tests.unit.policy.reference import (
    WithWeights,
    assemble,
    hf_logprobs,
    largest_difference,
    merge_by_hand,
    split_qkv,
)


@pytest.mark.parametrize(("alpha", "dim", "scale"), [(32, 8, 4.0), (32, 1, 32.0), (16, 8, 2.0), (3, 6, 0.5)])
@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_adapter_of_ones_adds_alpha_over_dim_times_the_rank(pool, models, alpha, dim, scale, layout):
    if layout == "tp2" and dim % 2:
        pytest.skip("a rank that tensor parallelism cannot cut is refused, see below")
    world, overrides = LAYOUTS[layout]
    settings = [f"{PEFT}.alpha={alpha}", f"{PEFT}.dim={dim}", *overrides]
    for report in pool.run(world, adapter_jobs.adapter_of_ones, str(models("qwen3")), settings):
        columns = 4 * 32
        assert torch.equal(report["weight"], torch.full((64, columns), scale * dim))
        assert torch.equal(report["output"], torch.full((2, 1, 64), scale * dim * columns))


def test_rank_that_tensor_parallelism_cannot_cut_is_refused_by_key(pool, models):
    world, overrides = LAYOUTS["tp2"]
    with pytest.raises(RankFailure, match=r"peft\.dim=3 .*tensor_model_parallel_size=2"):
        pool.run(world, adapter_jobs.adapter_of_ones, str(models("qwen3")), [f"{PEFT}.dim=3", *overrides])


def test_merge_rounds_once_and_reports_what_is_lost(pool, models):
    report = pool.run(1, adapter_jobs.merged_on_a_grid, str(models("qwen3")), [0.003, 0.004])[0]
    assert report["weight"].dtype is torch.bfloat16
    assert torch.equal(report["weight"][:, 0], torch.ones(64).bfloat16()), "under half an ulp of 1"
    assert torch.equal(report["weight"][:, 1], torch.full((64,), 1.0078125).bfloat16())
    lost, kept = (float(torch.tensor(d).bfloat16()) for d in (0.003, 0.004))
    assert report["retention"]["delta_retained"] == pytest.approx(0.0078125 * kept / (lost**2 + kept**2), rel=1e-5)
    adapted = 4 * (64 * 128 + 256 * 64 + 256 * 64 + 64 * 128)
    assert report["retention"]["weights_moved"] == pytest.approx(64 / adapted, rel=1e-6)


def test_fused_qkv_rows_are_interleaved_by_kv_group():
    rows = split_qkv(torch.arange(8)[:, None], heads=4, groups=2, head_dim=1)
    assert {k: v[:, 0].tolist() for k, v in rows.items()} == {"q": [0, 1, 4, 5], "k": [2, 6], "v": [3, 7]}


@pytest.mark.parametrize("layout", ["single", "tp2", "tp2-pp2"])
def test_export_is_the_base_plus_scaled_product(reports, models, layout):
    report = reports("qwen3", layout, False)
    base = AutoModelForCausalLM.from_pretrained(models("qwen3"), dtype=torch.float32)
    expected = merge_by_hand(base, assemble([r["start"] for r in report]), scale=4.0)
    assert largest_difference(report[0]["export"], expected) < 1e-6


@pytest.mark.parametrize("model", ["qwen3", "llama", "qwen2", "gemma3"])
def test_gradients_equal_autograd_through_hugging_face(reports, models, batches, model):
    report, batch = reports(model, "single", False), batches(model)
    adapters = {n: t.requires_grad_() for n, t in assemble([r["start"] for r in report]).items()}
    base = AutoModelForCausalLM.from_pretrained(models(model), dtype=torch.float32)
    logprobs = hf_logprobs(WithWeights(base, merge_by_hand(base, adapters, scale=4.0)), batch, temperature=0.7)
    loss, _ = make_loss(load_config(CONFIG, BASICS))(logprobs, batch, Normalizer.of(batch.mask_BT))
    loss.backward()
    assert report[0]["first"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    expected = {name: t.grad for name, t in adapters.items()}
    assert largest_difference(assemble([r["gradients"] for r in report]), expected) < 5e-5
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in expected.values()))
    assert report[0]["first"]["grad_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("layout", ["single", "tp2-sp", "pp2"])
def test_recompute_changes_no_gradient_and_cuts_none_off(pool, models, reports, batches, layout):
    world, overrides = LAYOUTS[layout]
    settings = [TEMPERATURE, *overrides, *PACKED, f"{MEGATRON}.activation_checkpointing=true"]
    report = pool.run(world, adapter_jobs.gradients, str(models("qwen3")), settings, batches("qwen3"))
    gradients = assemble([r["gradients"] for r in report])
    assert len(gradients) == 32 and all(g.abs().max() > 0 for g in gradients.values())
    assert largest_difference(gradients, assemble([r["gradients"] for r in reports("qwen3", layout, True)])) < 1e-5


@pytest.mark.parametrize("world", [1, 2])
def test_padded_vocabulary_stays_out_of_the_softmax(pool, world):
    logits, token = torch.tensor([[[2.0, 1.0, 0.0, 0, 0, 0, 0, 0]]]), torch.tensor([[0]])
    replies = pool.run(world, adapter_jobs.padded_vocabulary_logprobs, logits, token, 3, 1.0)
    for out, _ in replies:
        assert float(out) == pytest.approx(-0.407606, abs=1e-6)
    gradient = torch.cat([grad for _, grad in replies], dim=-1)[0, 0]
    expected = torch.tensor([1.0, 0, 0]) - torch.tensor([2.0, 1, 0]).softmax(0)
    assert torch.allclose(gradient[:3], expected, atol=1e-6) and torch.equal(gradient[3:], torch.zeros(5))
    unpadded = pool.run(world, adapter_jobs.padded_vocabulary_logprobs, logits, token, 8, 1.0)
    assert float(unpadded[0][0]) == pytest.approx(-0.779275, abs=1e-6), "the golden wrong value: pads do count"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_over_two_ranks_equal_log_softmax(pool, temperature, dtype):
    g = torch.Generator().manual_seed(1)
    logits, tokens = torch.randn(2, 5, 12, generator=g).to(dtype) * 3, torch.randint(0, 10, (2, 5), generator=g)
    replies = pool.run(2, adapter_jobs.padded_vocabulary_logprobs, logits, tokens, 10, temperature)
    expected = (logits[..., :10].float() / temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    for out, gradient in replies:
        assert torch.allclose(out, expected, atol=2e-6) and gradient.dtype is dtype


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("temperature", "chunk"), [(1.0, None), (0.5, 3)])
def test_frozen_head_has_the_values_and_the_gradient_of_log_softmax(pool, world, dtype, limit, temperature, chunk):
    g = torch.Generator().manual_seed(2)
    hidden, weight = torch.randn(7, 16, generator=g).to(dtype), torch.randn(12, 16, generator=g).to(dtype)
    tokens, factors = torch.randint(0, 10, (7,), generator=g), torch.randn(7, generator=g)
    hidden[0] = weight[3] / 3  # token 3 has a probability of 0.83 or 0.994: 1 - p must survive bfloat16
    tokens[0], factors[0] = 3, 1e3
    wide = hidden.double().requires_grad_()
    logits = wide @ weight[:10].double().T / temperature
    expected = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    (expected * factors).sum().backward()
    for out, gradient in pool.run(
        world, adapter_jobs.frozen_head, hidden, weight, tokens, factors, 10, temperature, chunk
    ):
        assert torch.allclose(out, expected.float(), atol=1e-5) and gradient.dtype is dtype
        difference = (gradient.double() - wide.grad).abs().amax(1) / wide.grad.abs().amax(1)
        assert float(difference.max()) < limit, difference


@pytest.mark.parametrize("layout", ["single", "tp2-sp", "tp2-pp2"])
def test_vocabulary_that_does_not_divide_is_padded_and_exported_without_pads(pool, models, batches, layout):
    world, overrides = LAYOUTS[layout]
    path = str(models("qwen3-131"))
    report = pool.run(world, adapter_jobs.train_and_export, path, [*overrides, *PACKED], batches("qwen3"))
    weights = report[0]["export"]
    assert weights["lm_head.weight"].shape == weights["model.embed_tokens.weight"].shape == (131, 64)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.load_state_dict(weights)
    with torch.no_grad():
        expected = hf_logprobs(model, batches("qwen3"))
    assert max(float((r["live"] - expected).abs().max()) for r in report if r["live"] is not None) < 1e-4


def test_hundred_exports_leave_the_base_untouched_and_agree(pool, models):
    report = pool.run(1, adapter_jobs.many_exports, str(models("qwen3")), 100)[0]
    assert report["before"] == report["after"] != report["tampered"]
    assert report["same"]


def test_adapter_without_an_export_task_is_refused_by_name(pool, models):
    message = pool.run(1, adapter_jobs.lost_adapter, str(models("qwen3")))[0]
    assert "1 of 16 trainable adapters would never reach the rollout engine" in message
    assert "decoder.layers.2.mlp.linear_fc2" in message


@pytest.mark.parametrize("pattern", ["output_layer", "*output*", "*layer"])
def test_tied_output_layer_named_as_target_is_refused(pool, models, pattern):
    settings = [f"{PEFT}.target_modules=[linear_qkv,'{pattern}']"]
    with pytest.raises(RankFailure, match=r"target_modules .*ties it to the embedding"):
        pool.run(1, adapter_jobs.adapter_of_ones, str(models("qwen2")), settings)


@pytest.mark.parametrize("layout", ["single", "pp2"])
def test_target_that_matches_nothing_is_refused(pool, models, layout):
    world, overrides = LAYOUTS[layout]
    settings = [f"{PEFT}.target_modules=[linear_qkv,linear_qkw]", *overrides]
    with pytest.raises(RankFailure, match=r"target_modules=\[.linear_qkw.\] fits no linear"):
        pool.run(world, adapter_jobs.adapter_of_ones, str(models("qwen3")), settings)


def test_exclusion_that_matches_nothing_is_refused(pool, models):
    settings = [f"{PEFT}.target_modules=[]", f"{PEFT}.exclude_modules=[linear_proj,linear_fc3]"]
    with pytest.raises(RankFailure, match=r"exclude_modules=\[.linear_fc3.\] fits no linear"):
        pool.run(1, adapter_jobs.adapter_of_ones, str(models("qwen3")), settings)


@pytest.mark.parametrize(("model", "targets"), [
    ("qwen3", "target_modules=[linear_qkv,output_layer]"),
    ("qwen2", "target_modules=[]"),
    ("llama", "target_modules=['*.layers.0.*.linear_qkv','*.layers.3.mlp.linear_fc2']"),
    ("qwen3", "exclude_modules=[linear_fc1,linear_fc2]"),
])  # fmt: skip
@pytest.mark.parametrize("layout", ["single", "tp2-pp2"])
def test_any_choice_of_targets_exports_what_it_trains(pool, models, batches, model, targets, layout):
    world, overrides = LAYOUTS[layout]
    path = str(models(model))
    base_targets = f"{PEFT}.target_modules=[]" if targets.startswith("exclude") else f"{PEFT}.exclude_modules=[]"
    report = pool.run(
        world, adapter_jobs.train_and_export, path, [base_targets, f"{PEFT}.{targets}", *overrides], batches(model)
    )
    hf = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    base = {name: t.clone() for name, t in hf.state_dict().items()}
    weights = report[0]["export"]
    hf.load_state_dict(weights, strict=False)
    with torch.no_grad():
        expected = hf_logprobs(hf, batches(model))
    assert max(float((r["live"] - expected).abs().max()) for r in report if r["live"] is not None) < 1e-4
    moved = {n.rpartition("layers.")[2] for n in weights if not torch.equal(weights[n], base[n])}
    wanted = {
        "target_modules=[linear_qkv,output_layer]": 13,
        "target_modules=[]": 28,
        "exclude_modules=[linear_fc1,linear_fc2]": 16,
    }
    assert len(moved) == wanted.get(targets, 4)
    assert ("lm_head.weight" in moved) == ("output_layer" in targets)


@pytest.mark.parametrize("layout", ["single", "tp2-sp"])
def test_reference_of_the_start_is_put_in_and_taken_out_bit_for_bit(pool, models, batches, layout):
    world, overrides = LAYOUTS[layout]
    for report in pool.run(
        world, adapter_jobs.reference_of_the_start, str(models("llama")), overrides, batches("llama")
    ):
        assert torch.equal(report["reference"], report["start"])
        assert torch.equal(report["again"], report["live"])
        assert (report["live"] - report["start"]).abs().max() > 1e-3
        assert all(torch.equal(report["held"][n].value, report["kept"][n].value) for n in report["held"])


@pytest.mark.parametrize(("model", "layout", "packed"), [
    ("qwen3", "single", False), ("qwen2", "single", True), ("qwen3", "tp2-sp", True), ("qwen2", "tp2-sp", False),
    ("qwen2", "pp2", True), ("qwen2", "tp2-pp2", False), ("llama", "dp2", False), ("llama", "cp2", True),
])  # fmt: skip
def test_full_parameter_step_equals_gradient_descent_on_hugging_face(pool, models, batches, model, layout, packed):
    world, overrides = LAYOUTS[layout]
    sgd = [f"{MEGATRON}.optimizer.{o}" for o in ("optimizer=sgd", "sgd_momentum=0", "lr=0.01", "weight_decay=0")]
    settings = [f"{PEFT}.enabled=false", TEMPERATURE, *sgd, *overrides, *(PACKED if packed else [])]
    path, batch = str(models(model)), batches(model)
    report = pool.run(world, adapter_jobs.train_and_export, path, settings, batch)
    hf = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    loss, _ = make_loss(load_config(CONFIG, BASICS))(hf_logprobs(hf, batch, 0.7), batch, Normalizer.of(batch.mask_BT))
    loss.backward()
    stepped = {name: p.detach() - 0.01 * p.grad for name, p in hf.named_parameters()}
    assert all(p.grad.abs().max() > 0 for p in hf.parameters())
    step = {name: stepped[name] - p.detach() for name, p in hf.named_parameters()}
    taken = {name: report[0]["export"][name] - p.detach() for name, p in hf.named_parameters()}
    assert largest_difference(taken, step) < 2e-4
    before, after = zip(*(r["reference"] for r in report if r["reference"][0] is not None), strict=True)
    assert all(torch.equal(a[~a.isnan()], b[~b.isnan()]) for a, b in zip(before, after, strict=True))
