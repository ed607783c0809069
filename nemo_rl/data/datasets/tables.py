"""Rows from local files and from the Hugging Face Hub, and the checks every row must pass."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_rl.data.errors import DataError, did_you_mean

Row = Mapping[str, Any]

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""File extension → the reader's name in the `datasets` library."""


def looks_like_file(name: str) -> bool:
    """True for a name that can only mean a local table."""
    return Path(name).suffix.lower() in READERS or Path(name).is_dir()


def read_local(path: Path, split: str | None) -> Iterator[Row]:
    """Rows of a file, or of `<split>.<extension>` in a folder."""
    import datasets

    file = _pick_file(path, split)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"dataset file {file} has no known format; use one of {', '.join(READERS)}")
    if file.stat().st_size == 0:
        raise DataError(f"dataset file {file} is empty")
    try:
        # streamed, so that nothing is copied to a cache that outlives the file
        yield from datasets.load_dataset(reader, data_files=str(file), split="train", streaming=True)
    except ValueError as error:  # pyarrow's complaints about content are ValueErrors
        raise DataError(f"dataset file {file} cannot be read as {reader}: {error}") from error


def _pick_file(path: Path, split: str | None) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"dataset file {path} does not exist")
    stem = split or "train"
    for extension in READERS:
        if (path / f"{stem}{extension}").is_file():
            return path / f"{stem}{extension}"
    raise DataError(f"dataset folder {path} has no file {stem}.jsonl (nor .json, .parquet, .csv)")


def read_hub(name: str, subset: str | None, split: str | None) -> Iterator[Row]:
    """Rows of a dataset on the Hub, or of its copy in the local Hugging Face cache."""
    import datasets

    try:
        table = datasets.load_dataset(name, subset, split=split or "train")
    except ValueError as error:  # an unknown subset or split; `datasets` lists the known ones
        raise DataError(f"dataset {name!r} cannot be loaded from the Hugging Face Hub: {error}") from error
    except OSError as error:  # connection trouble and "no such dataset" are both OSErrors there
        raise DataError(
            f"dataset {name!r} is neither a local file nor reachable on the Hugging Face Hub "
            f"({type(error).__name__}); check the name and the network, or set data_path to a local copy"
        ) from error
    yield from table


def column(row: Row, key: str, setting: str, source: str) -> Any:
    """`row[key]`, or an error that names the setting to change."""
    if key not in row:
        raise DataError(f"dataset {source} has no column {key!r} (setting {setting}){did_you_mean(key, row)}")
    if row[key] is None:
        raise DataError(f"dataset {source} has a row whose column {key!r} (setting {setting}) is empty")
    return row[key]
