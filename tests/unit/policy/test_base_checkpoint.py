"""The base from a Megatron checkpoint: the weights are those of the checkpoint, at any layout, or there is an error."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from nemo_rl.utils.checkpoint_files import CheckpointError, megatron_checkpoint
from nemo_rl.utils.tiny_model import make_tiny_model
from tests.unit.policy import base_jobs
from tests.unit.policy.layouts import LAYOUTS, TEMPERATURE
from tests.unit.policy.reference import hf_logprobs, make_batch, whole_logprobs


@pytest.fixture(scope="module")
def checkpoint(pool, models, tmp_path_factory):
    """The tiny models' weights, written by two tensor ranks."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("megatron") / name
            world, overrides = LAYOUTS["tp2"]
            pool.run(world, base_jobs.write_megatron_checkpoint, str(models(name)), overrides, str(made[name]))
        return made[name]

    return make


@pytest.mark.parametrize(("name", "layout"), [
    ("qwen3", "single"), ("llama", "pp2"), ("qwen2", "tp2-sp"), ("qwen3", "dp2"),
])  # fmt: skip
def test_base_computes_what_the_checkpoint_holds(pool, models, checkpoint, tmp_path, name, layout):
    make_tiny_model(tmp_path, architecture=name, seed=99, tie=name == "qwen2")  # the same shape, other weights
    world, overrides = LAYOUTS[layout]
    job = (str(tmp_path), [TEMPERATURE, *overrides], make_batch(), str(checkpoint(name)))
    reports = pool.run(world, base_jobs.start_from_base, *job)
    found = whole_logprobs([r["reference"] for r in reports])
    with torch.no_grad():
        right, other = (
            hf_logprobs(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), make_batch(), 0.7)
            for path in (models(name), tmp_path)
        )
    assert (found - right).abs().max() < 1e-4
    assert (found - other).abs().max() > 0.1


def test_checkpoint_of_another_shape_is_refused(pool, checkpoint, tmp_path):
    make_tiny_model(tmp_path, architecture="qwen3", hidden_size=128)
    report = pool.run(1, base_jobs.start_from_base, str(tmp_path), [], make_batch(), str(checkpoint("qwen3")))[0]
    assert "does not fit the model of policy.model_name" in report["error"]


def test_folder_without_a_checkpoint_is_refused(tmp_path, checkpoint):
    with pytest.raises(CheckpointError, match=r"neither metadata\.json nor iter_\*"):
        megatron_checkpoint(tmp_path)
    folder = checkpoint("qwen3")
    assert megatron_checkpoint(folder) == megatron_checkpoint(folder / "iter_0000007") == folder / "iter_0000007"
