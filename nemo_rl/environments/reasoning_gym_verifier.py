"""Scores an answer by the reasoning-gym task that made the problem."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from reasoning_gym import get_score_answer_fn

from nemo_rl.environments.answers import marked_answer
from nemo_rl.environments.grading import Grade


@cache
def _scorer(task: str) -> Callable[..., float]:
    return get_score_answer_fn(task)


def grade(response: str, metadata: Mapping[str, Any]) -> Grade:
    """The task's own score in [0, 1]; `metadata["entry"]` is the problem as reasoning-gym made it.

    The answer is the last box or <answer> tag, else the whole response: many tasks want free text.
    """
    answer = marked_answer(response)
    if answer is None:
        answer = response.strip()
    entry = metadata["entry"]
    return Grade(float(_scorer(entry["metadata"]["source_dataset"])(answer, entry)), answer)
