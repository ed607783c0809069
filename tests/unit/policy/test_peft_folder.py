"""PEFT folders: `peft` opens what we write, we read it back at any layout, and refuse what we cannot hold."""

import json
import re
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.unit.policy import peft_jobs
from tests.unit.policy.jobs import MEGATRON, PEFT
from tests.unit.policy.layouts import LAYOUTS, TEMPERATURE
from tests.unit.policy.reference import assemble, hf_logprobs, largest_difference, whole_logprobs

A_OF_Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def saved(pool, models, batches, tmp_path_factory):
    """(folder, report) of five steps at a layout."""
    made = {}

    def make(model="qwen3", layout="single"):
        if (model, layout) not in made:
            folder = tmp_path_factory.mktemp("peft") / f"{model}-{layout}"
            world, overrides = LAYOUTS[layout]
            arguments = (str(models(model)), [TEMPERATURE, *overrides], batches(model), 5, str(folder))
            made[model, layout] = folder, pool.run(world, peft_jobs.train_and_save, *arguments)
        return made[model, layout]

    return make


@pytest.mark.parametrize(("model", "layout"), [
    ("qwen3", "single"), ("qwen2", "single"), ("llama", "tp2-sp"), ("qwen3", "tp2-pp2"), ("qwen2", "pp2"),
])  # fmt: skip
def test_peft_opens_our_folder_and_gives_the_trainers_logprobs(saved, models, batches, model, layout):
    folder, report = saved(model, layout)
    base = AutoModelForCausalLM.from_pretrained(models(model), dtype=torch.float32)
    opened = PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        expected = hf_logprobs(opened, batches(model), 0.7)
        with opened.disable_adapter():
            assert (hf_logprobs(opened, batches(model), 0.7) - expected).abs().max() > 0.1
    assert (whole_logprobs([r["logprobs"] for r in report]) - expected).abs().max() < 1e-4
    assert len(load_file(folder / "adapter_model.safetensors")) == 4 * 7 * 2


@pytest.mark.parametrize(("written", "read"), [
    ("single", "single"), ("single", "tp2-sp"), ("tp2-pp2", "single"), ("single", "pp2"), ("tp2-pp2", "tp2"),
])  # fmt: skip
def test_adapters_are_exactly_equal_after_reload(pool, models, batches, saved, written, read):
    folder, report = saved("qwen3", written)
    world, overrides = LAYOUTS[read]
    started = pool.run(
        world, peft_jobs.start_from, str(models("qwen3")), [TEMPERATURE, *overrides], batches("qwen3"), 1, str(folder)
    )
    saved_weights, loaded = assemble([r["weights"] for r in report]), assemble([r["weights"] for r in started])
    assert len(loaded) == 32 and loaded.keys() == saved_weights.keys()
    assert all(torch.equal(loaded[n], saved_weights[n]) for n in loaded)
    start = whole_logprobs([r["logprobs"] for r in started])
    assert torch.equal(whole_logprobs([r["reference"] for r in started]), start), "reference=start is the loaded policy"


def test_five_steps_then_adapter_then_five_more_equal_ten(pool, models, batches, saved, tmp_path):
    """Plain SGD has no memory but the weights, so that a folder with nothing else is enough to be exact."""
    sgd = [f"{MEGATRON}.optimizer.{o}" for o in ("optimizer=sgd", "sgd_momentum=0", "lr=1e-3", "weight_decay=0")]
    model, batch = str(models("llama")), batches("llama")
    half = pool.run(1, peft_jobs.train_and_save, model, sgd, batch, 5, str(tmp_path / "half"))[0]
    ten = pool.run(1, peft_jobs.train_and_save, model, sgd, batch, 10, str(tmp_path / "ten"))[0]
    rest = pool.run(1, peft_jobs.start_from, model, sgd, batch, 5, str(tmp_path / "half"))[0]
    assert all(torch.equal(rest["final"][n].value, ten["weights"][n].value) for n in ten["weights"])
    assert largest_difference(assemble([half["weights"]]), assemble([ten["weights"]])) > 1e-3


def _edited(folder, copy, config=None, tensors=None):
    shutil.copytree(folder, copy)
    settings = json.loads((copy / "adapter_config.json").read_text()) | (config or {})
    (copy / "adapter_config.json").write_text(json.dumps(settings))
    if tensors is not None:
        save_file(tensors(load_file(copy / "adapter_model.safetensors")), copy / "adapter_model.safetensors")
    return copy


def _other_a(tensors):
    return tensors | {A_OF_Q: tensors[A_OF_Q] + 1}


def _without_layer_three(tensors):
    return {n: t for n, t in tensors.items() if ".layers.3." not in n}


def _with_head(tensors):
    return tensors | {"base_model.model.lm_head.lora_A.weight": torch.zeros(8, 64)}


def _wider(tensors):
    return {n: torch.cat([t, t], 1) if n.endswith("o_proj.lora_A.weight") else t for n, t in tensors.items()}


@pytest.mark.parametrize(("config", "tensors", "words"), [
    ({"r": 4}, None, r"has r=4, but policy.megatron_cfg.peft.dim=8"),
    ({"lora_alpha": 16}, None, r"has lora_alpha=16, but policy.megatron_cfg.peft.alpha=32.0"),
    ({"peft_type": "IA3"}, None, r"of type IA3"),
    ({"use_rslora": True}, None, r"sets use_rslora=True"),
    ({"use_dora": True}, None, r"sets use_dora=True"),
    ({"rank_pattern": {"q_proj": 4}}, None, r"sets rank_pattern="),
    ({}, _other_a, r"A matrices of .*q_proj.* differ, and Megatron's fused linear has one A"),
    ({}, _without_layer_three, r"it has no base_model\.model\.model\.layers\.3\."),
    ({}, _with_head, r"adapts 1 tensors that this run does not, first base_model\.model\.lm_head"),
    ({}, _wider, r"gives a matrix of \[8, 256\] where the model needs \[8, 128\]"),
])  # fmt: skip
@pytest.mark.parametrize("layout", ["single", "pp2"])
def test_folder_that_cannot_be_held_is_refused_on_every_rank(
    pool, models, saved, tmp_path, config, tensors, words, layout
):
    folder = _edited(saved()[0], tmp_path / "edited", config, tensors)
    world, overrides = LAYOUTS[layout]
    for report in pool.run(world, peft_jobs.refusal, str(models("qwen3")), overrides, str(folder)):
        assert re.search(words, report["message"]), report["message"]
        assert report["untouched"] and "\n" not in report["message"]


def test_folder_without_adapter_or_run_without_adapters_is_refused(pool, models, saved, tmp_path):
    model = str(models("qwen3"))
    empty = pool.run(1, peft_jobs.refusal, model, [], str(tmp_path))[0]["message"]
    assert "is not a PEFT adapter: it has no adapter_config.json" in empty
    none = pool.run(1, peft_jobs.refusal, model, [f"{PEFT}.enabled=false"], str(saved()[0]))[0]["message"]
    assert "peft.enabled is false" in none
