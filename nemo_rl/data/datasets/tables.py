"""Rows from local files and from the Hugging Face Hub, and the checks every row must pass."""

import glob
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_rl.data.errors import DataError, did_you_mean
from nemo_rl.data.settings import DatasetSettings
from nemo_rl.errors import first_line

Row = Mapping[str, Any]

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""File extension → the reader's name in the `datasets` library."""


def looks_like_file(name: str) -> bool:
    """True for a name that can only mean a local table."""
    return Path(name).suffix.lower() in READERS or Path(name).is_dir()


def read_local(settings: DatasetSettings, path: Path, split: str | None) -> Iterator[Row]:
    """Rows of a file, or of `<split>.<extension>` in a folder; `settings` says in messages whose file it is."""
    import datasets

    file = _pick_file(settings.key, path, split)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{settings.key}: dataset file {file} has no known format; use one of {', '.join(READERS)}")
    if file.stat().st_size == 0:
        raise DataError(f"{settings.key}: dataset file {file} is empty")
    try:
        # streamed, so that nothing is copied to a cache that outlives the file
        yield from datasets.load_dataset(reader, data_files=glob.escape(str(file)), split="train", streaming=True)
    except ValueError as error:  # pyarrow's complaints about content are ValueErrors
        problem = broken_line(file) if file.suffix.lower() == ".jsonl" else None
        raise DataError(
            f"{settings.key}: dataset file {file} cannot be read as {reader}: {problem or first_line(error)}"
        ) from error


def broken_line(file: Path) -> str | None:
    """The first line that is not a JSON object, and why; pyarrow counts from the start of its own blocks."""
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError as error:
            return f"line {number} is not JSON ({error})"
        if not isinstance(row, dict):
            return f"line {number} is a {type(row).__name__} where an object is expected"
    return None


def _pick_file(key: str, path: Path, split: str | None) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{key}: dataset file {path} does not exist")
    stem = split or "train"
    for extension in READERS:
        if (path / f"{stem}{extension}").is_file():
            return path / f"{stem}{extension}"
    raise DataError(f"{key}: dataset folder {path} has no file {stem}.jsonl (nor .json, .parquet, .csv)")


def read_hub(settings: DatasetSettings, name: str, subset: str | None, split: str | None) -> Iterator[Row]:
    """Rows of a dataset on the Hub, or of its copy in the local Hugging Face cache."""
    import datasets

    try:
        table = datasets.load_dataset(name, subset, split=split or "train")
    except ValueError as error:  # an unknown subset or split; `datasets` lists the known ones
        raise DataError(
            f"{settings.key}: dataset {name!r} cannot be loaded from the Hugging Face Hub: {first_line(error)}"
        ) from error
    except OSError as error:  # connection trouble and "no such dataset" are both OSErrors there
        raise DataError(
            f"{settings.key}: dataset {name!r} is neither a local file nor reachable on the Hugging Face Hub "
            f"({type(error).__name__}); check the name and the network, or set "
            f"{settings.key}.data_path to a local copy"
        ) from error
    yield from table


def column(row: Row, name: str, settings: DatasetSettings, setting: str) -> Any:
    """`row[name]`, or an error that names the setting to change: `input_key` or `output_key`."""
    key = f"{settings.key}.{setting}"
    if name not in row:
        raise DataError(f"{settings} has no column {name!r} (setting {key}){did_you_mean(name, row)}")
    if row[name] is None:
        raise DataError(f"{settings} has a row whose column {name!r} (setting {key}) is empty")
    return row[name]
