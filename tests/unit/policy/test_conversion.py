"""Converters: each writes what computes the trainer's log-probabilities, and notices if it does not."""

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.policy import conversion_jobs
from tests.unit.policy.jobs import PEFT
from tests.unit.policy.layouts import LAYOUTS

BF16 = "policy.precision=bfloat16"


@pytest.fixture(scope="module")
def checkpoints(pool, models, batches, tmp_path_factory):
    made = {}

    def make(model="qwen3", layout="single", *overrides):
        key = (model, layout, overrides)
        if key not in made:
            world, settings = LAYOUTS[layout]
            arguments = (str(models(model)), [*settings, *overrides], batches(model))
            made[key] = pool.run(
                world, conversion_jobs.write_checkpoint, *arguments, str(tmp_path_factory.mktemp("run"))
            )[0]
        return made[key]

    return make


@pytest.mark.parametrize(("model", "layout", "overrides"), [
    ("qwen3", "single", ()), ("qwen2", "single", ()), ("llama", "single", (BF16,)),
    ("llama", "single", (f"{PEFT}.enabled=false",)), ("qwen3", "tp2-pp2", ()),
])  # fmt: skip
def test_checkpoint_becomes_a_merged_model(pool, models, checkpoints, tmp_path, model, layout, overrides):
    source, output = checkpoints(model, layout, *overrides), tmp_path / "merged"
    report = pool.run(
        1, conversion_jobs.convert, "checkpoint_to_hugging_face", source, str(output), str(models(model))
    )[0]
    assert {"config.json", "tokenizer.json"} <= set(report["files"])
    assert any(name.endswith(".safetensors") for name in report["files"])
    assert report["mean_difference"] < (0.05 if BF16 in overrides else 1e-4)


@pytest.mark.parametrize(("model", "layout"), [("qwen2", "single"), ("qwen3", "single"), ("qwen3", "tp2-pp2")])
def test_checkpoint_becomes_an_adapter_and_the_adapter_a_checkpoint(pool, models, checkpoints, tmp_path, model, layout):
    source, base = checkpoints(model, layout), str(models(model))
    adapter, back, again = (str(tmp_path / name) for name in ("adapter", "back", "again"))
    report = pool.run(1, conversion_jobs.convert, "checkpoint_to_peft", source, adapter, base)[0]
    assert set(report["files"]) == {"adapter_config.json", "adapter_model.safetensors"}
    assert report["largest_difference"] < 1e-4
    returned = pool.run(1, conversion_jobs.convert, "peft_to_checkpoint", adapter, back, base)[0]
    assert returned["largest_difference"] < 1e-4 and str(returned["output"]).endswith("back/step_0")
    pool.run(1, conversion_jobs.convert, "checkpoint_to_peft", str(returned["output"]), again, base)
    first, second = (load_file(f"{folder}/adapter_model.safetensors") for folder in (adapter, again))
    assert first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_wrong_base_and_occupied_output_are_told(pool, models, checkpoints, tmp_path):
    source, base = checkpoints(), str(models("qwen3"))
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "mine.txt").write_text("")
    message = pool.run(1, conversion_jobs.convert, "checkpoint_to_peft", source, str(occupied), base)[0]
    assert "is not empty: nothing is overwritten" in message and [f.name for f in occupied.iterdir()] == ["mine.txt"]
    dims = [f"{PEFT}.dim=4"]
    adapter = str(tmp_path / "adapter")
    pool.run(1, conversion_jobs.convert, "checkpoint_to_peft", source, adapter, base)
    message = pool.run(1, conversion_jobs.convert, "peft_to_checkpoint", adapter, str(tmp_path / "x"), base, dims)[0]
    assert "has r=8, but policy.megatron_cfg.peft.dim=4" in message


def test_verification_notices_a_weight_that_was_not_written_right(pool, models, checkpoints, tmp_path):
    message = pool.run(
        1, conversion_jobs.convert_with_damage, checkpoints(), str(tmp_path / "adapter"), str(models("qwen3"))
    )[0]
    assert "does not compute what the trainer computes" in message
