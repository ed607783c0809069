"""A multi-turn game: guess a hidden number, hear "higher" or "lower"."""

import re
from collections.abc import Sequence

from nemo_rl.environments.interfaces import EnvironmentInput, EnvironmentOutput
from nemo_rl.environments.settings import EnvironmentSettings

_INTEGER = re.compile(r"(?:(?<!\w)-)?\d+")  # the hyphen of "1-7" is no sign


class GuessNumberEnvironment:
    """Rewards 1.0 for the right number within `turns_left` guesses; a guess without a number costs a turn.

    The metadata carries the game's whole state ("target", "turns_left"), so one environment plays any number of
    games at once.
    """

    def __init__(self, settings: EnvironmentSettings) -> None:
        del settings

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]:
        return [self._turn(item) for item in batch]

    def _turn(self, item: EnvironmentInput) -> EnvironmentOutput:
        target, turns_left = item.metadata["target"], item.metadata["turns_left"] - 1
        state = {**item.metadata, "turns_left": turns_left}
        numbers = _INTEGER.findall(item.response.replace("−", "-"))
        answer = numbers[-1] if numbers else None
        if answer is not None and _without_leading_zeros(answer) == str(target):
            return EnvironmentOutput(reward=1.0, metadata=state, answer=answer)
        if turns_left <= 0:
            return EnvironmentOutput(reward=0.0, metadata=state, answer=answer)
        hint = self._hint(answer, target)
        return EnvironmentOutput(
            reward=0.0,
            terminated=False,
            observations=({"role": "user", "content": hint},),
            metadata=state,
            answer=answer,
        )

    @staticmethod
    def _hint(answer: str | None, target: int) -> str:
        if answer is None:
            return "Answer with a number."
        return "Higher." if float(answer) < target else "Lower."

    def close(self) -> None: ...


def _without_leading_zeros(number: str) -> str:
    """As str(int(number)); a model may write more digits than int() accepts."""
    digits = number.removeprefix("-").lstrip("0")
    return f"-{digits}" if number.startswith("-") and digits else digits or "0"
