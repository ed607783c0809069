import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nemo_rl.utils.checkpoint import CheckpointError, CheckpointManager, check_compatible, list_checkpoints, verify

CONFIG = {"policy": {"model_name": "tiny"}}


def manager(directory: Path, keep_top_k: int | None = None, higher: bool = True) -> CheckpointManager:
    return CheckpointManager(directory, "val:accuracy", higher_is_better=higher, keep_top_k=keep_top_k)


def save(checkpoints: CheckpointManager, step: int, accuracy: float | None = None) -> Path:
    path = checkpoints.begin(step)
    (path / "policy").mkdir()
    (path / "policy" / "adapters.bin").write_bytes(bytes(100 + step))
    metrics = {} if accuracy is None else {"validation/accuracy": accuracy}
    info = {"metrics": metrics, "compatibility": {"policy.model_name": "tiny", "peft.dim": 8}, "consumed": 16 * step}
    return checkpoints.finalize(step, info, CONFIG)


def steps(directory: Path) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in list_checkpoints(directory)]


def test_a_checkpoint_holds_what_was_saved_and_says_what_it_is(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    path = save(checkpoints, 3, accuracy=0.5)
    assert path == tmp_path / "step_3" == checkpoints.latest()
    info = checkpoints.load_info(path)
    assert (info["step"], info["consumed"], info["metrics"]) == (3, 48, {"validation/accuracy": 0.5})
    assert yaml.safe_load((path / "config.yaml").read_text()) == CONFIG
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert manifest["format"] == "nemo_rl-checkpoint-v1"
    assert {f["path"] for f in manifest["files"]} == {"config.yaml", "training_info.json", "policy/adapters.bin"}


def test_nothing_is_a_checkpoint_before_finalize(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    assert checkpoints.begin(1).name == "tmp_step_1"
    assert checkpoints.latest() is None
    assert checkpoints.best() is None


def test_leftovers_of_an_interrupted_save_are_removed_at_start(tmp_path: Path) -> None:
    (manager(tmp_path).begin(4) / "half").write_bytes(b"x")
    manager(tmp_path)
    assert not list(tmp_path.glob("*step_*"))


def test_a_finished_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    save(checkpoints, 1)
    with pytest.raises(CheckpointError, match="step_1 exists already"):
        checkpoints.begin(1)


def test_a_broken_checkpoint_is_set_aside_when_its_step_is_saved_again(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    (save(checkpoints, 1) / "policy" / "adapters.bin").unlink()
    save(checkpoints, 1)
    verify(tmp_path / "step_1")
    assert (tmp_path / "broken_step_1.1").is_dir()


@pytest.mark.parametrize(
    ("higher", "accuracies", "kept"),
    [
        (True, [0.1, 0.9, 0.5, 0.2], [2, 3, 4]),  # the best two, and the latest
        (False, [0.1, 0.9, 0.5, 0.2], [1, 4]),
        (True, [0.5, 0.5, 0.5, 0.5], [3, 4]),  # ties go to the newest
        (True, [0.3, math.nan, None, 0.1], [1, 4]),  # no usable metric ranks last
        (True, [0.9, None, None, None], [1, 4]),
    ],
)
def test_pruning_keeps_the_best_and_the_latest(
    tmp_path: Path, higher: bool, accuracies: list[float | None], kept: list[int]
) -> None:
    checkpoints = manager(tmp_path, keep_top_k=2, higher=higher)
    for step, accuracy in enumerate(accuracies, start=1):
        save(checkpoints, step, accuracy)
    assert steps(tmp_path) == kept


def test_keep_one_still_keeps_best_and_latest(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path, keep_top_k=1)
    for step, accuracy in enumerate([0.2, 0.9, 0.4, 0.3], start=1):
        save(checkpoints, step, accuracy)
    assert steps(tmp_path) == [2, 4]
    assert checkpoints.best() == tmp_path / "step_2"


def test_best_of_equals_is_the_newest(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    for step in (1, 2, 10):
        save(checkpoints, step, 0.5)
    assert checkpoints.best() == tmp_path / "step_10"


def test_pruning_after_a_fallback_never_deletes_the_only_whole_newest(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path, keep_top_k=1)
    save(checkpoints, 5, 0.9)
    (save(checkpoints, 8, 0.8) / "MANIFEST.json").unlink()
    save(checkpoints, 6, 0.1)
    assert steps(tmp_path) == [5, 6, 8]


def truncate(path: Path) -> None:
    (path / "policy" / "adapters.bin").write_bytes(b"short")


def remove(path: Path) -> None:
    (path / "policy" / "adapters.bin").unlink()


def alter(path: Path) -> None:
    file = path / "policy" / "adapters.bin"
    file.write_bytes(b"\1" * file.stat().st_size)


def remove_manifest(path: Path) -> None:
    (path / "MANIFEST.json").unlink()


def cut_manifest(path: Path) -> None:
    text = (path / "MANIFEST.json").read_text()
    (path / "MANIFEST.json").write_text(text[: len(text) // 2])


def other_format(path: Path) -> None:
    manifest = json.loads((path / "MANIFEST.json").read_text())
    (path / "MANIFEST.json").write_text(json.dumps({**manifest, "format": "other-v2"}))


BREAKAGES = [
    (truncate, r"adapters\.bin has 5 bytes instead of 102"),
    (remove, r"adapters\.bin is missing"),
    (alter, r"adapters\.bin does not have the content that was saved"),
    (remove_manifest, r"has no MANIFEST\.json"),
    (cut_manifest, r"MANIFEST\.json is not readable JSON"),
    (other_format, r"format 'other-v2', but this version reads 'nemo_rl-checkpoint-v1'"),
]


@pytest.mark.parametrize(("breakage", "reason"), BREAKAGES)
def test_a_broken_checkpoint_is_refused_with_its_reason(tmp_path: Path, breakage, reason: str) -> None:
    checkpoints = manager(tmp_path)
    breakage(save(checkpoints, 2))
    with pytest.raises(CheckpointError, match=reason):
        checkpoints.latest()


@pytest.mark.parametrize(("breakage", "reason"), BREAKAGES)
def test_the_previous_one_is_used_if_the_user_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breakage, reason: str
) -> None:
    checkpoints = manager(tmp_path)
    previous = save(checkpoints, 1)
    breakage(save(checkpoints, 2))
    with caplog.at_level(logging.WARNING):
        assert checkpoints.latest(fallback_to_previous=True) == previous
    assert "step_2" in caplog.text and "step_1" in caplog.text


def test_a_run_does_not_start_afresh_when_every_checkpoint_is_broken(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    remove(save(checkpoints, 1))
    with pytest.raises(CheckpointError, match="step_1"):
        checkpoints.latest(fallback_to_previous=True)


def test_an_incompatible_configuration_is_refused_naming_each_difference(tmp_path: Path) -> None:
    checkpoints = manager(tmp_path)
    info = checkpoints.load_info(save(checkpoints, 1))
    check_compatible(info, {"policy.model_name": "tiny", "peft.dim": 8})
    with pytest.raises(
        CheckpointError, match=r"peft\.dim was 8 and is now 16; peft\.alpha \(now 32\) was not recorded"
    ):
        check_compatible(info, {"policy.model_name": "tiny", "peft.dim": 16, "peft.alpha": 32})


def test_a_directory_that_another_run_writes_to_is_refused_and_left_alone(tmp_path: Path) -> None:
    code = "import sys, nemo_rl.utils.checkpoint as c; m = c.CheckpointManager(sys.argv[1], None, True, None); "
    other = [sys.executable, "-c", code + "m.begin(3); print('has it', flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "has it\n"
        with pytest.raises(CheckpointError, match=r"another run is writing to .*checkpoint_dir of its own"):
            manager(tmp_path)
        assert (tmp_path / "tmp_step_3").is_dir()
        process.communicate("")
    manager(tmp_path)
    assert not (tmp_path / "tmp_step_3").exists()


def test_keep_top_k_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_top_k must be at least 1"):
        manager(tmp_path, keep_top_k=0)
