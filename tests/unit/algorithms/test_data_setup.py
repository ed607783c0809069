"""What a run starts from is checked before any worker is."""

from pathlib import Path

import pytest

from nemo_rl.algorithms.data_setup import check_starting_points
from nemo_rl.config.schema import CheckpointingConfig
from nemo_rl.data.errors import DataError


@pytest.mark.parametrize(("key", "complaint"), [
    ("adapter_path", "has no adapter_config.json"), ("pretrained_checkpoint", "neither metadata.json nor iter_"),
])  # fmt: skip
def test_starting_point_that_is_not_there_is_named(tmp_path: Path, key: str, complaint: str) -> None:
    with pytest.raises(DataError, match=f"checkpointing.{key}.*{complaint}"):
        check_starting_points(CheckpointingConfig.model_validate({key: str(tmp_path)}))


def test_starting_points_that_are_there_pass(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "iter_0000001").mkdir()
    (tmp_path / "iter_0000001" / "metadata.json").write_text("{}")
    check_starting_points(CheckpointingConfig(adapter_path=str(tmp_path), pretrained_checkpoint=str(tmp_path)))
