"""Plays episodes: the engine writes a turn, the environment answers, until it says that the episode is over."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_rl.data.interfaces import Message, Prompt
from nemo_rl.environments.interfaces import Environment, EnvironmentInput, EnvironmentOutput, GradeStatus
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.experience.observations import observation_tokens
from nemo_rl.generation.interfaces import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingSettings,
    VersionSpan,
)

Generate = Callable[[Sequence[GenerationRequest]], list[GenerationOutput]]


@dataclass(frozen=True)
class RolloutSettings:
    """Limits of an episode. `seed` None leaves sampling to the engine's own generator."""

    max_new_tokens: int
    max_total_tokens: int
    max_turns: int
    sampling: SamplingSettings
    seed: int | None


@dataclass
class _Episode:
    group_id: str
    sample_index: int
    prompt: Prompt
    token_ids: list[int]
    messages: list[Message]
    metadata: Mapping[str, Any]
    loss_mask: list[bool]
    logprobs: list[float]
    spans: list[VersionSpan] = field(default_factory=list)
    reward: float = 0.0
    status: GradeStatus = GradeStatus.GRADED
    answer: str | None = None
    finish_reason: FinishReason = FinishReason.STOP
    turns: int = 0
    over: bool = False


def sample_seed(run_seed: int, group_id: str, sample_index: int, turn: int) -> int:
    """The seed of one draw, the same wherever and whenever the sample is (re)issued; 31 bits."""
    digest = hashlib.sha256(f"{run_seed}/{group_id}/{sample_index}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


class RolloutRunner:
    """Turns prompts into groups of finished rollouts."""

    def __init__(self, generate: Generate, environments: Mapping[str, Environment], tokenizer: Any) -> None:
        self.generate = generate
        self.environments = environments
        self.tokenizer = tokenizer

    def run(
        self, prompts: Sequence[Prompt], group_ids: Sequence[str], samples: int, settings: RolloutSettings
    ) -> list[RolloutGroup]:
        """`samples` rollouts of every prompt. All episodes of the call take their turns together."""
        episodes = [
            _Episode(
                group_id=group_id,
                sample_index=index,
                prompt=prompt,
                token_ids=list(prompt.token_ids),
                messages=list(prompt.messages),
                metadata=prompt.metadata,
                loss_mask=[False] * len(prompt.token_ids),
                logprobs=[0.0] * len(prompt.token_ids),
            )
            for prompt, group_id in zip(prompts, group_ids, strict=True)
            for index in range(samples)
        ]
        while active := [episode for episode in episodes if not episode.over]:
            self._take_turn(active, settings)
        finished = [_finish(episode) for episode in episodes]
        return [
            RolloutGroup(group_id, finished[i * samples : (i + 1) * samples]) for i, group_id in enumerate(group_ids)
        ]

    def _take_turn(self, active: list[_Episode], settings: RolloutSettings) -> None:
        requests = [
            GenerationRequest(
                request_id=f"{e.group_id}/{e.sample_index}/{e.turns}",
                token_ids=tuple(e.token_ids),
                max_new_tokens=min(settings.max_new_tokens, settings.max_total_tokens - len(e.token_ids)),
                seed=None if settings.seed is None else sample_seed(settings.seed, e.group_id, e.sample_index, e.turns),
                sampling=settings.sampling,
            )
            for e in active
        ]
        for episode, output in zip(active, self.generate(requests), strict=True):
            self._append_turn(episode, output)
        for name in {episode.prompt.env_name for episode in active}:
            self._step_environment(name, [e for e in active if e.prompt.env_name == name], settings)

    def _append_turn(self, episode: _Episode, output: GenerationOutput) -> None:
        start = len(episode.token_ids)
        episode.token_ids += output.token_ids
        episode.loss_mask += [True] * len(output.token_ids)
        episode.logprobs += output.logprobs
        episode.spans += [VersionSpan(start + s.start, start + s.end, s.version) for s in output.version_spans]
        text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        episode.messages.append({"role": "assistant", "content": text})
        episode.finish_reason = output.finish_reason
        episode.turns += 1

    def _step_environment(self, name: str, episodes: list[_Episode], settings: RolloutSettings) -> None:
        inputs = [EnvironmentInput(f"{e.group_id}/{e.sample_index}", tuple(e.messages), e.metadata) for e in episodes]
        for episode, outcome in zip(episodes, self.environments[name].step(inputs), strict=True):
            self._apply(episode, outcome, settings)

    def _apply(self, episode: _Episode, outcome: EnvironmentOutput, settings: RolloutSettings) -> None:
        episode.reward += outcome.reward
        episode.status, episode.answer, episode.metadata = outcome.status, outcome.answer, outcome.metadata
        truncated = episode.finish_reason is FinishReason.LENGTH
        if outcome.terminated or truncated or episode.turns >= settings.max_turns:
            episode.over = True
            return
        tokens = observation_tokens(self.tokenizer, episode.messages, outcome.observations, episode.token_ids[-1])
        if len(episode.token_ids) + len(tokens) >= settings.max_total_tokens:
            episode.over, episode.finish_reason = True, FinishReason.LENGTH
            return
        episode.token_ids += tokens
        episode.loss_mask += [False] * len(tokens)
        episode.logprobs += [0.0] * len(tokens)
        episode.messages += outcome.observations


def _finish(episode: _Episode) -> Rollout:
    return Rollout(
        group_id=episode.group_id,
        sample_index=episode.sample_index,
        prompt=episode.prompt,
        token_ids=episode.token_ids,
        loss_mask=episode.loss_mask,
        logprobs=episode.logprobs,
        version_spans=episode.spans,
        messages=episode.messages,
        reward=episode.reward,
        finish_reason=episode.finish_reason,
        grade_status=episode.status,
        answer=episode.answer,
        turns=episode.turns,
    )
