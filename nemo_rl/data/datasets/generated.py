"""Problems made on the spot: reasoning-gym's tasks and the small tasks of quickstart and games."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from nemo_rl.data.errors import DataError, did_you_mean
from nemo_rl.data.settings import DatasetSettings, Record
from nemo_rl.errors import first_line

DEFAULT_SIZE = 1024


def reasoning_gym_records(settings: DatasetSettings) -> Iterator[Record]:
    """A reasoning-gym task; `task_params` holds its name under "task" and the task's own parameters."""
    from reasoning_gym.factory import DATASETS, create_dataset

    params = dict(settings.task_params)
    task = params.pop("task", None)
    if task is None:
        raise DataError(
            f"dataset reasoning_gym needs a task: set {settings.key}.task_params.task or "
            f"{settings.key}.dataset_name=reasoning_gym:TASK"
        )
    if task not in DATASETS:
        raise DataError(f"{settings.key}: reasoning_gym has no task {task!r}{did_you_mean(str(task), DATASETS)}")
    try:
        entries = create_dataset(task, seed=settings.seed, size=settings.size or DEFAULT_SIZE, **params)
    except TypeError as error:
        known = set(DATASETS[task][1].__dataclass_fields__) - {"seed", "size"}
        wrong = next((key for key in params if key not in known), None)
        if wrong is None:
            raise _refused(settings, task, params, error) from error
        hint = did_you_mean(wrong, known)
        raise DataError(f"{settings.key}: reasoning_gym task {task!r} has no parameter {wrong!r}{hint}") from error
    except (AssertionError, ValueError) as error:
        raise _refused(settings, task, params, error) from error
    for index in range(len(entries)):
        try:
            entry = entries[index]
        except (TypeError, ValueError) as error:  # some tasks look at their parameters only here
            raise _refused(settings, task, params, error) from error
        metadata = {"ground_truth": entry["answer"], "entry": entry}
        row_id = f"reasoning_gym-{task}-{settings.seed}:{index}"
        yield Record(row_id, entry["question"], metadata, settings.env_name or "reasoning_gym")


def _refused(settings: DatasetSettings, task: str, params: dict[str, Any], error: Exception) -> DataError:
    given = ", ".join(f"{name}={value!r}" for name, value in params.items())
    return DataError(
        f"reasoning_gym task {task!r} refuses {settings.key}.task_params ({given or 'none given'}): {first_line(error)}"
    )


def tiny_max_records(settings: DatasetSettings) -> Iterator[Record]:
    """The quickstart's task: four different digits, of which the largest is the answer. "3 8 1 5" → "8".

    No row comes twice, so a validation split holds only problems that training has not seen.
    """
    problems = list(itertools.permutations(range(10), 4))
    size = settings.size or DEFAULT_SIZE
    if size > len(problems):
        raise DataError(f"dataset tiny_max has {len(problems)} different problems, {settings.key}.size asks for {size}")
    for index, digits in enumerate(random.Random(settings.seed).sample(problems, size)):
        problem = " ".join(str(digit) for digit in digits)
        metadata = {"ground_truth": str(max(digits))}
        yield Record(f"tiny_max-{settings.seed}:{index}", problem, metadata, settings.env_name or "exact_match")


def guess_number_records(settings: DatasetSettings) -> Iterator[Record]:
    """A multi-turn game: find the hidden number; the environment answers "higher" or "lower"."""
    low, high = settings.task_params.get("low", 1), settings.task_params.get("high", 10)
    turns = settings.task_params.get("max_turns", 5)
    for name, value in (("low", low), ("high", high), ("max_turns", turns)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"{settings.key}.task_params.{name} must be a whole number, found {value!r}")
    if not low < high:
        raise DataError(
            f"dataset guess_number needs low < high, found {settings.key}.task_params.low={low} and high={high}"
        )
    rng = random.Random(settings.seed)
    for index in range(settings.size or DEFAULT_SIZE):
        metadata = {"target": rng.randint(low, high), "turns_left": turns}
        problem = f"I think of a whole number from {low} to {high}. Guess it; answer with the number only."
        yield Record(f"guess_number-{settings.seed}:{index}", problem, metadata, settings.env_name or "guess_number")
