import importlib.util
import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import yaml

from nemo_rl.utils.logger import RunLogger, read_history
from nemo_rl.utils.logger_backends import BackendSettings, MlflowSettings, TrackerError, WandbSettings, check_backends
from nemo_rl.utils.run_dir import RunOrigin, get_run_dir

CONFIG = {"grpo": {"max_num_steps": 3}, "paths": ["a", "b"]}


def lines(run_dir: Path) -> list[dict]:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_one_line_per_step_is_on_disk_at_once(tmp_path: Path) -> None:
    with RunLogger(tmp_path, CONFIG) as logger:
        logger.log_metrics({"train/reward": 0.25, "train/steps": 1}, step=1)
        (line,) = lines(tmp_path)
        assert (line["step"], line["train/reward"]) == (1, 0.25)
        assert line["time"] > 1e9


def test_nan_and_infinity_become_null_and_read_back_as_nan(tmp_path: Path) -> None:
    with RunLogger(tmp_path, CONFIG) as logger:
        logger.log_metrics({"train/kl": math.nan, "train/max": math.inf, "train/np": np.float32(0.5)}, step=1)
    (line,) = lines(tmp_path)
    assert (line["train/kl"], line["train/max"], line["train/np"]) == (None, None, 0.5)
    assert math.isnan(read_history(tmp_path)[0]["train/kl"])


def test_a_step_logged_twice_is_an_error(tmp_path: Path) -> None:
    with RunLogger(tmp_path, CONFIG) as logger:
        logger.log_metrics({}, step=2)
        with pytest.raises(ValueError, match="step 2 was logged after step 2"):
            logger.log_metrics({}, step=2)


def test_a_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    with RunLogger(tmp_path, CONFIG) as logger, pytest.raises(TypeError, match="train/note"):
        logger.log_metrics({"train/note": "high"}, step=1)  # type: ignore[dict-item]


def test_resume_drops_the_steps_that_will_be_done_again(tmp_path: Path) -> None:
    with RunLogger(tmp_path, CONFIG) as logger:
        for step in range(1, 6):
            logger.log_metrics({"train/reward": step}, step)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train/rew')  # the driver was killed while writing
    with RunLogger(tmp_path, CONFIG, resume_step=3) as logger:
        assert [line["step"] for line in logger.history] == [1, 2, 3]
        logger.log_metrics({"train/reward": 40}, 4)
    assert [(line["step"], line["train/reward"]) for line in lines(tmp_path)] == [(1, 1), (2, 2), (3, 3), (4, 40)]


def test_a_used_run_directory_is_refused_without_a_resume_step(tmp_path: Path) -> None:
    RunLogger(tmp_path, CONFIG).close()
    with pytest.raises(FileExistsError, match=r"metrics\.jsonl exists"):
        RunLogger(tmp_path, CONFIG)


def test_config_and_environment_are_written(tmp_path: Path) -> None:
    RunLogger(tmp_path, CONFIG).close()
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == CONFIG
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["python"].startswith("3.12")
    assert environment["hardware"]["memory_bytes"] > 2**30
    assert set(environment["git"]) == {"commit", "modified"}


class Status(Enum):
    DONE = "done"


@dataclass
class Sample:
    text: str
    reward: float
    status: Status


def test_rollouts_are_one_json_line_each(tmp_path: Path) -> None:
    with RunLogger(tmp_path, CONFIG) as logger:
        path = logger.log_rollouts([Sample("4", 1.0, Status.DONE), {"text": "?", "reward": math.nan}], step=7)
        validation = logger.log_rollouts([], step=7, kind="validation")
    assert path == tmp_path / "rollouts" / "step_7.jsonl"
    assert validation.name == "validation_step_7.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records == [{"text": "4", "reward": 1.0, "status": "done"}, {"text": "?", "reward": None}]


def test_run_directories_count_up(tmp_path: Path) -> None:
    assert get_run_dir(tmp_path / "logs").name == "exp_001"
    (tmp_path / "logs" / "exp_007").mkdir()
    (tmp_path / "logs" / "exp_old").mkdir()
    assert get_run_dir(tmp_path / "logs").name == "exp_008"


def test_a_resumed_run_gets_its_own_directory_and_the_metrics_so_far(tmp_path: Path) -> None:
    first = get_run_dir(tmp_path)
    with RunLogger(first, CONFIG) as logger:
        for step in (1, 2, 3):
            logger.log_metrics({"train/reward": step}, step)
    second = get_run_dir(tmp_path, RunOrigin(checkpoint=tmp_path / "ckpt" / "step_2", step=2, run_dir=first))
    with RunLogger(second, CONFIG, resume_step=2) as logger:
        logger.log_metrics({"train/reward": 30}, 3)
    assert json.loads((second / "resumed_from.json").read_text())["step"] == 2
    assert [line["train/reward"] for line in lines(second)] == [1, 2, 30]
    assert [line["train/reward"] for line in lines(first)] == [1, 2, 3]


def test_tensorboard_receives_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLogger(tmp_path, CONFIG, BackendSettings(tensorboard=True)) as logger:
        logger.log_metrics({"train/reward": 0.5}, step=1)
        logger.log_metrics({"train/reward": 0.75}, step=2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/reward")] == [(1, 0.5), (2, 0.75)]


def test_wandb_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with RunLogger(tmp_path, CONFIG, BackendSettings(wandb=WandbSettings("project", "name"))) as logger:
        logger.log_metrics({"train/reward": 0.5}, step=1)
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(run.glob("run-*.wandb"))


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="mlflow is installed")
def test_a_tracker_that_is_not_installed_is_named_with_its_remedy(tmp_path: Path) -> None:
    settings = BackendSettings(mlflow=MlflowSettings("experiment", "run"))
    with pytest.raises(TrackerError, match=r"logger\.mlflow_enabled .* `uv sync --extra mlflow`"):
        check_backends(settings)
    with pytest.raises(TrackerError):
        RunLogger(tmp_path, CONFIG, settings)
    assert not (tmp_path / "metrics.jsonl").exists()


class RecordingBackend:
    def __init__(self) -> None:
        self.closed: bool | None = None

    def log_config(self, config: object) -> None: ...

    def log_metrics(self, metrics: object, step: int) -> None: ...

    def close(self, failed: bool) -> None:
        self.closed = failed


@pytest.mark.parametrize("fails", [False, True])
def test_trackers_learn_whether_the_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    backend = RecordingBackend()
    monkeypatch.setattr("nemo_rl.utils.logger.make_backends", lambda *_: [backend])
    try:
        with RunLogger(tmp_path, CONFIG):
            if fails:
                raise RuntimeError("worker died")
    except RuntimeError:
        assert fails
    assert backend.closed is fails
