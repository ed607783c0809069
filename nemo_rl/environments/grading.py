"""What a grader is: a function of (response, metadata). Imported by grader processes, so it must stay light."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Grade:
    """A reward and, for people who read rollouts, the answer that was read out of the response."""

    reward: float
    answer: str | None = None


Grader = Callable[[str, Mapping[str, Any]], "Grade | float | bool"]


class EntryPointError(ValueError):
    """An entry point that cannot be resolved; the message is one sentence."""


def load_entry_point(entry_point: str) -> Any:
    """The object that "module:name" or "path/to/file.py:name" means."""
    source, _, name = entry_point.rpartition(":")
    if not source or not name:
        raise EntryPointError(f"entry point {entry_point!r} must read 'module:name' or 'file.py:name'")
    module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source, entry_point)
    if not hasattr(module, name):
        raise EntryPointError(f"entry point {entry_point!r}: {source} defines no {name!r}")
    return getattr(module, name)


def _load_module(name: str, entry_point: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, something that it imports is not
        raise EntryPointError(f"entry point {entry_point!r}: there is no module {name!r}") from error


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise EntryPointError(f"entry point file {path} does not exist")
    name = f"nemo_rl_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # true of every .py file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by its name
    spec.loader.exec_module(module)
    return module


def as_grade(result: Any) -> Grade:
    """What a grader returned, as a Grade; refuses what is not a finite number."""
    grade = result if isinstance(result, Grade) else Grade(float(result))
    if not math.isfinite(grade.reward):
        raise ValueError(f"the reward function returned {grade.reward}, a reward must be finite")
    return grade
