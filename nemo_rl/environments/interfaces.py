"""The one small interface between rollouts and whatever scores them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from nemo_rl.data.interfaces import Message


class GradeStatus(Enum):
    """How a grade came about. Only GRADED says anything about the answer."""

    GRADED = "graded"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class EnvironmentInput:
    """One rollout as its environment sees it: the conversation so far, whose last message is the model's."""

    sample_id: str
    messages: Sequence[Message]
    metadata: Mapping[str, Any]

    @property
    def response(self) -> str:
        """The text of the model's latest turn."""
        return self.messages[-1]["content"]


@dataclass(frozen=True)
class EnvironmentOutput:
    """The environment's answer to one rollout.

    `reward` is NaN unless `status` is GRADED. `observations` are appended to the conversation when the episode goes
    on; `metadata` replaces the rollout's metadata for the next turn. `answer` is what was read out of the response.
    """

    reward: float
    terminated: bool = True
    observations: Sequence[Message] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    status: GradeStatus = GradeStatus.GRADED
    answer: str | None = None
    error: str | None = None


class Environment(Protocol):
    """Scores a batch of rollouts; returns one output per input, in the same order."""

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]: ...

    def close(self) -> None: ...
