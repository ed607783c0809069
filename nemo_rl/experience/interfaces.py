"""Rollouts: what an episode left behind, and the groups that are compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nemo_rl.data.interfaces import Message, Prompt
from nemo_rl.environments.interfaces import GradeStatus
from nemo_rl.generation.interfaces import FinishReason, VersionSpan


@dataclass
class Rollout:
    """One finished episode. Per-token lists have one entry per token of prompt + turns + observations.

    `loss_mask` is True where the model sampled the token; `logprobs` is the engine's log-probability there, 0.0
    elsewhere. `version_spans` index into the same token list. `reward` is NaN when grading failed.
    """

    group_id: str
    sample_index: int
    prompt: Prompt
    token_ids: list[int]
    loss_mask: list[bool]
    logprobs: list[float]
    version_spans: list[VersionSpan]
    messages: list[Message]
    reward: float
    finish_reason: FinishReason
    grade_status: GradeStatus = GradeStatus.GRADED
    answer: str | None = None
    turns: int = 1

    @property
    def prompt_length(self) -> int:
        return len(self.prompt.token_ids)

    @property
    def generated_length(self) -> int:
        """Number of tokens that the model itself sampled."""
        return sum(self.loss_mask)

    @property
    def oldest_version(self) -> int:
        return min(span.version for span in self.version_spans)


@dataclass
class RolloutGroup:
    """All rollouts of one prompt in one step: the unit that advantages are taken over. Known by its id alone."""

    group_id: str
    rollouts: Sequence[Rollout]
    metrics: dict[str, float] = field(default_factory=dict)
