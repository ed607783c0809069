"""JSON that every reader can parse: dataclasses and enums become plain values, NaN and infinity become null."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any


def to_plain(value: Any) -> Any:
    """The value in JSON's own types. Numpy and torch scalars become numbers; anything unknown is a TypeError."""
    if value is None or isinstance(value, (bool, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(to_plain(k)): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # a numpy or torch scalar or array, recognised without importing either
        return to_plain(value.tolist())
    raise TypeError(f"cannot write a {type(value).__name__} as JSON: {value!r}")


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(to_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def write_text_atomic(path: Path, text: str) -> None:
    """Replaces the file as a whole: a reader, or a crash, sees the old text or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_text_atomic(path, dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """An object; ValueError if the file holds something else."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} where an object is expected")
    return content


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    write_text_atomic(path, "".join(dumps(record) + "\n" for record in records))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All complete lines. A last line cut short by a crash is left out; a broken line elsewhere is an error."""
    lines = path.read_text(encoding="utf-8").split("\n")
    complete, rest = lines[:-1], lines[-1]
    records = [json.loads(line) for line in complete if line]
    if rest:
        # the writer died inside this line; everything before it is whole
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(rest))
    return records
