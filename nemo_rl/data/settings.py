"""Which dataset, which part of it, and how its rows become problems."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DatasetSettings:
    """One dataset.

    `dataset_name` is a registered name, a Hub id ("owner/name") or the path of a local file; `data_path` points a
    registered name at local files. `input_key` and `output_key` None are a known table's own columns, else "input" and
    "output". `env_name` None takes the dataset's own environment. `split_validation_size` is
    a fraction below 1 or a number of rows. `size` is the most rows to use, or how many to generate; `seed` decides
    the split and, with `task_params`, what is generated. `key` is the section of the configuration, for messages.
    """

    dataset_name: str
    data_path: Path | None = None
    split: str | None = None
    subset: str | None = None
    seed: int = 42
    split_validation_size: float = 0.0
    input_key: str | None = None
    output_key: str | None = None
    size: int | None = None
    task_params: Mapping[str, Any] = field(default_factory=dict)
    env_name: str | None = None
    prompt_file: Path | None = None
    system_prompt_file: Path | None = None
    key: str = "data.train"

    def __str__(self) -> str:
        """How messages name it: the section, and the file or else the dataset's name."""
        return f"{self.key} ({self.data_path or self.dataset_name})"


@dataclass(frozen=True)
class Record:
    """One problem before templating. `row_id` is unique in its dataset and the same in every run and epoch."""

    row_id: str
    problem: str
    metadata: Mapping[str, Any]
    env_name: str
