"""Saving and loading the policy: exact at the same layout, the same weights at another."""

import shutil

import pytest
import torch

from tests.unit.policy import checkpoint_jobs
from tests.unit.policy.jobs import MEGATRON, PEFT
from tests.unit.policy.layouts import LAYOUTS
from tests.unit.policy.reference import assemble, largest_difference

SCHEDULE = [f"{MEGATRON}.scheduler.{s}" for s in ("lr_decay_style=cosine", "lr_decay_iters=8", "lr_warmup_iters=2")]
DISTRIBUTED = [f"{MEGATRON}.optimizer.use_distributed_optimizer=true"]
BF16 = ["policy.precision=bfloat16"]
FP16 = ["policy.precision=float16"]
STEPS, SAVE_AT = 4, 2


@pytest.mark.parametrize(("layout", "settings"), [
    ("single", []), ("single", BF16), ("single", DISTRIBUTED), ("single", BF16 + DISTRIBUTED),
    ("single", [f"{PEFT}.enabled=false", *BF16]), ("dp2", BF16 + DISTRIBUTED), ("tp2-sp", []), ("pp2", DISTRIBUTED),
    ("single", FP16 + DISTRIBUTED),
])  # fmt: skip
def test_resumed_training_is_bit_for_bit_the_uninterrupted_one(pool, models, batches, tmp_path, layout, settings):
    world, overrides = LAYOUTS[layout]
    job = (str(models("qwen3")), [*overrides, *SCHEDULE, *settings], batches("qwen3"))
    straight = pool.run(world, checkpoint_jobs.uninterrupted, *job, STEPS, SAVE_AT, str(tmp_path / "policy"))
    resumed = pool.run(world, checkpoint_jobs.resumed, *job, STEPS - SAVE_AT, str(tmp_path / "policy"), first=1)
    for a, b in zip(straight, resumed, strict=True):
        assert a["replies"][SAVE_AT:] == b["replies"], "loss, gradient norm, learning rate"
        assert a["children"] == [], "a process that saving started would outlive a killed rank"
        assert a["replies"][0]["lr"] != a["replies"][-1]["lr"], "the schedule moves"
        assert a["optimizer"].keys() == b["optimizer"].keys()
        assert {"master", "exp_avg", "exp_avg_sq", "step"} == {key for _, _, key in a["optimizer"]}
        assert [k for k, t in a["optimizer"].items() if not torch.equal(t, b["optimizer"][k])] == []
        assert all(t.abs().max() > 0 for t in a["optimizer"].values())
        assert all(torch.equal(a["weights"][n].value, b["weights"][n].value) for n in a["weights"])
        assert torch.equal(a["random"], b["random"])
        assert not all(torch.equal(a["weights"][n].value, a["saved"][n].value) for n in a["weights"])


def test_policy_that_left_its_devices_says_so_until_it_is_back(pool, models, batches, tmp_path):
    """On a CPU nothing moves, so that only this tells of a step that would fail on a GPU."""
    args = (str(models("qwen3")), [], batches("qwen3"), str(tmp_path / "policy"))
    answers = pool.run(1, checkpoint_jobs.while_away, *args)[0]
    asked = ("a checkpoint", "a PEFT folder", "a forward pass", "training", "a weight sync")
    assert answers == [f"{what} needs the policy on its devices, which it has left to the engine" for what in asked]
    assert (tmp_path / "policy").is_dir()


@pytest.mark.parametrize(("saver", "loader", "settings"), [
    ("tp2", "single", []), ("single", "tp2", []), ("tp2-pp2", "dp2", BF16 + DISTRIBUTED), ("dp2", "pp2", DISTRIBUTED),
])  # fmt: skip
def test_another_layout_loads_the_same_weights_and_trains_on(pool, models, batches, tmp_path, saver, loader, settings):
    model, batch, folder = str(models("llama")), batches("llama"), str(tmp_path / "policy")
    (saving, save_with), (loading, load_with) = LAYOUTS[saver], LAYOUTS[loader]
    common = [*SCHEDULE, *settings]
    args = (model, [*save_with, *common], batch, STEPS, SAVE_AT, folder)
    straight = pool.run(saving, checkpoint_jobs.uninterrupted, *args)
    resumed = pool.run(loading, checkpoint_jobs.resumed, model, [*load_with, *common], batch, STEPS - SAVE_AT, folder)
    loaded, saved = assemble([r["loaded"] for r in resumed]), assemble([r["saved"] for r in straight])
    assert loaded.keys() == saved.keys() and all(torch.equal(loaded[n], saved[n]) for n in saved)
    ends = [assemble([r["weights"] for r in replies]) for replies in (resumed, straight)]
    # moments that were lost or mixed up would show in the next steps, of about the learning rate each
    assert largest_difference(*ends) < (2e-2 if BF16[0] in settings else 5e-5)
    assert [r["lr"] for r in resumed[0]["replies"]] == [r["lr"] for r in straight[0]["replies"][SAVE_AT:]]


@pytest.fixture(scope="module")
def saved_folder(pool, models, batches, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "policy"
    pool.run(1, checkpoint_jobs.uninterrupted, str(models("qwen3")), [], batches("qwen3"), 1, 1, str(folder))
    return folder


def test_only_trainable_state_is_written(saved_folder):
    adapters = 4 * 8 * (64 + 256 + 128 + 64 + 64 + 256 + 128 + 64)
    size = sum(file.stat().st_size for file in saved_folder.iterdir())
    assert 3 * 4 * adapters < size < 3 * 4 * adapters + 300_000, "weights and two moments, float32"


@pytest.mark.parametrize("suffix", [".distcp", ".metadata"])
def test_truncated_file_is_refused_with_the_folders_name(pool, models, saved_folder, tmp_path, suffix):
    copy = shutil.copytree(saved_folder, tmp_path / "policy")
    checkpoint_jobs.cut_in_half(copy, suffix)
    message = pool.run(1, checkpoint_jobs.refused, str(models("qwen3")), [], str(copy))[0]
    assert message.startswith(str(copy)) and ("damaged" in message or "readable" in message), message
    assert "\n" not in message


@pytest.mark.parametrize(("overrides", "words"), [
    ([f"{PEFT}.dim=4"], "holds a policy with dim=8; this run has 4"),
    ([f"{PEFT}.alpha=16"], "holds a policy with alpha=32.0; this run has 16.0"),
    ([f"{PEFT}.target_modules=[linear_qkv]"], "target_modules="),
    ([f"{PEFT}.enabled=false"], "adapters=True; this run has False"),
    (BF16, "precision=float32; this run has bfloat16"),
])  # fmt: skip
def test_checkpoint_of_another_training_is_refused(pool, models, saved_folder, overrides, words):
    assert words in pool.run(1, checkpoint_jobs.refused, str(models("qwen3")), overrides, str(saved_folder))[0]


@pytest.mark.parametrize("settings", [[], BF16, DISTRIBUTED])
def test_checkpoint_from_before_the_first_step_is_a_start_like_any_other(pool, models, batches, tmp_path, settings):
    job = (str(models("qwen3")), [*SCHEDULE, *settings], batches("qwen3"))
    straight = pool.run(1, checkpoint_jobs.uninterrupted, *job, 2, 0, str(tmp_path / "policy"))[0]
    resumed = pool.run(1, checkpoint_jobs.resumed, *job, 2, str(tmp_path / "policy"))[0]
    assert straight["replies"] == resumed["replies"]
    assert [k for k, t in straight["optimizer"].items() if not torch.equal(t, resumed["optimizer"][k])] == []


def test_folder_that_is_no_checkpoint_is_refused(pool, models, tmp_path):
    message = pool.run(1, checkpoint_jobs.refused, str(models("qwen3")), [], str(tmp_path))[0]
    assert "is not a readable policy checkpoint" in message
