"""Finds the dataset that a name means: registered, `reasoning_gym:<task>`, a local file or a Hub id."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from nemo_rl.data.datasets.generated import guess_number_records, reasoning_gym_records, tiny_max_records
from nemo_rl.data.datasets.response import FORMATS, format_records, table_records
from nemo_rl.data.datasets.tables import looks_like_file, read_hub, read_local
from nemo_rl.data.errors import DataError, did_you_mean
from nemo_rl.data.settings import DatasetSettings, Record

RecordSource = Callable[[DatasetSettings], Iterator[Record]]

_SOURCES: dict[str, RecordSource] = {
    "reasoning_gym": reasoning_gym_records,
    "guess_number": guess_number_records,
    "tiny_max": tiny_max_records,
    **{name: partial(format_records, name) for name in FORMATS},
    # the same tables under their Hub ids, so that their answer format is known there too
    **{table.hub_id: partial(format_records, name) for name, table in FORMATS.items()},
}


def register_dataset(name: str, source: RecordSource) -> None:
    """Makes `dataset_name: name` mean `source`."""
    if name in _SOURCES:
        raise ValueError(f"a dataset named {name!r} is already registered")
    _SOURCES[name] = source


def load_records(settings: DatasetSettings) -> list[Record]:
    """The problems of a dataset, the first `size` of them if that is given; at least one."""
    records = list(itertools.islice(_source(settings), settings.size))
    if not records:
        raise DataError(f"{settings} has no rows")
    return records


def load_splits(settings: DatasetSettings) -> tuple[list[Record], list[Record]]:
    """(training, validation) problems; validation is a seeded random part of `split_validation_size`."""
    records = load_records(settings)
    size = settings.split_validation_size
    if size < 0:
        raise DataError(f"{settings.key}.split_validation_size must not be negative, got {size}")
    count = round(size * len(records)) if size < 1 else int(size)
    if size > 0 and not 0 < count < len(records):
        raise DataError(
            f"{settings.key}.split_validation_size={size} takes {count} of the {len(records)} rows of the dataset"
        )
    held_out = set(random.Random(settings.seed).sample(range(len(records)), count))
    train = [record for index, record in enumerate(records) if index not in held_out]
    return train, [records[index] for index in sorted(held_out)]


def _source(settings: DatasetSettings) -> Iterator[Record]:
    name, _, task = settings.dataset_name.partition(":")
    if name == "reasoning_gym" and task:
        settings = replace(settings, task_params={**settings.task_params, "task": task})
        return reasoning_gym_records(settings)
    name = settings.dataset_name
    if name in _SOURCES:
        return _SOURCES[name](settings)
    if name == "ResponseDataset":
        if settings.data_path is None:
            raise DataError(f"dataset ResponseDataset needs {settings.key}.data_path, the path of its file")
        return table_records(
            settings, read_local(settings, settings.data_path, settings.split), settings.data_path.stem
        )
    if looks_like_file(name):
        return table_records(settings, read_local(settings, Path(name), settings.split), Path(name).stem)
    if name.count("/") == 1:
        return table_records(settings, read_hub(settings, name, settings.subset, settings.split), name)
    known = [*_SOURCES, "ResponseDataset"]
    raise DataError(f"{settings.key}.dataset_name={name} is not a dataset{did_you_mean(name, known)}")
