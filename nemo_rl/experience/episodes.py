"""One episode: what has been said so far, and what each side's next contribution makes of it. No engine, no waiting."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_rl.data.interfaces import Message, Prompt
from nemo_rl.environments.interfaces import EnvironmentInput, EnvironmentOutput, GradeStatus
from nemo_rl.experience.interfaces import Rollout
from nemo_rl.experience.observations import observation_tokens
from nemo_rl.generation.interfaces import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingSettings,
    VersionSpan,
)


@dataclass(frozen=True)
class RolloutSettings:
    """Limits of an episode. `seed` None leaves sampling to the engine's own generator; `template_kwargs` are the chat
    template's, as in the prompt."""

    max_new_tokens: int
    max_total_tokens: int
    max_turns: int
    sampling: SamplingSettings
    seed: int | None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def sample_seed(run_seed: int, group_id: str, sample_index: int, turn: int) -> int:
    """The seed of one draw, the same wherever and whenever the sample is (re)issued; 31 bits."""
    digest = hashlib.sha256(f"{run_seed}/{group_id}/{sample_index}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


@dataclass
class Episode:
    """In turn: `request`, the engine answers, `append_turn`; `environment_input`, the environment answers, `apply`."""

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

    def request(self, settings: RolloutSettings) -> GenerationRequest:
        seed = settings.seed
        return GenerationRequest(
            request_id=f"{self.group_id}/{self.sample_index}/{self.turns}",
            token_ids=tuple(self.token_ids),
            max_new_tokens=min(settings.max_new_tokens, settings.max_total_tokens - len(self.token_ids)),
            seed=None if seed is None else sample_seed(seed, self.group_id, self.sample_index, self.turns),
            sampling=settings.sampling,
        )

    def append_turn(self, output: GenerationOutput, tokenizer: Any) -> None:
        start = len(self.token_ids)
        self.token_ids += output.token_ids
        self.loss_mask += [True] * len(output.token_ids)
        self.logprobs += output.logprobs
        self.spans += [VersionSpan(start + s.start, start + s.end, s.version) for s in output.version_spans]
        text = tokenizer.decode(output.token_ids, skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": text})
        self.finish_reason = output.finish_reason
        self.turns += 1

    def environment_input(self) -> EnvironmentInput:
        return EnvironmentInput(f"{self.group_id}/{self.sample_index}", tuple(self.messages), self.metadata)

    def apply(self, outcome: EnvironmentOutput, settings: RolloutSettings, tokenizer: Any) -> None:
        self.reward += outcome.reward
        self.status, self.answer, self.metadata = outcome.status, outcome.answer, outcome.metadata
        truncated = self.finish_reason is FinishReason.LENGTH
        if outcome.terminated or truncated or self.turns >= settings.max_turns:
            self.over = True
            return
        tokens = observation_tokens(
            tokenizer, self.messages, outcome.observations, self.token_ids, settings.template_kwargs
        )
        if len(self.token_ids) + len(tokens) >= settings.max_total_tokens:
            self.over, self.finish_reason = True, FinishReason.LENGTH
            return
        self.token_ids += tokens
        self.loss_mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)
        self.messages += outcome.observations

    def rollout(self) -> Rollout:
        return Rollout(
            group_id=self.group_id,
            sample_index=self.sample_index,
            prompt=self.prompt,
            token_ids=self.token_ids,
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            version_spans=self.spans,
            messages=self.messages,
            reward=self.reward,
            finish_reason=self.finish_reason,
            grade_status=self.status,
            answer=self.answer,
            turns=self.turns,
        )


def episodes_of(prompts: Sequence[Prompt], group_ids: Sequence[str], samples: int) -> list[Episode]:
    """`samples` fresh episodes of every prompt, prompt by prompt."""
    return [
        Episode(
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
