"""One request at a time makes the same rollouts as batches do."""

import asyncio
from collections.abc import Sequence

import pytest

from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import EnvironmentInput, EnvironmentOutput
from nemo_rl.experience.episodes import RolloutSettings, sample_seed
from nemo_rl.experience.group_player import GroupPlayer
from nemo_rl.experience.rollouts import RolloutRunner
from nemo_rl.generation.interfaces import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingSettings,
    VersionSpan,
)

from .fakes import FakeTokenizer


class CountDown:
    """Ends after as many turns as the prompt says; each answer before is met with "again"."""

    def step(self, batch: Sequence[EnvironmentInput]) -> list[EnvironmentOutput]:
        return [self._answer(item) for item in batch]

    def _answer(self, item: EnvironmentInput) -> EnvironmentOutput:
        left = item.metadata["turns"] - 1
        observation = () if left == 0 else ({"role": "user", "content": "again"},)
        return EnvironmentOutput(0.5, left == 0, observation, {"turns": left})

    def close(self) -> None: ...


def answer(request: GenerationRequest) -> GenerationOutput:
    """Two tokens that depend on the seed alone."""
    assert request.seed is not None
    tokens = (97 + request.seed % 26, 97 + request.seed // 26 % 26)
    return GenerationOutput(request.request_id, tokens, (-1.0, -2.0), FinishReason.STOP, (VersionSpan(0, 2, 3),))


def prompts() -> list[Prompt]:
    return [Prompt(f"row:{n}", ({"role": "user", "content": "go"},), (71, 79), "count", {"turns": n}) for n in (1, 3)]


SETTINGS = RolloutSettings(4, 200, 5, SamplingSettings(), seed=11)
IDS = ["epoch0/row:1", "epoch0/row:3"]


def test_rollouts_are_those_of_the_batched_runner() -> None:
    runner = RolloutRunner(lambda requests: [answer(r) for r in requests], {"count": CountDown()}, FakeTokenizer())
    batched = runner.run(prompts(), IDS, 3, SETTINGS)

    async def one_by_one(request: GenerationRequest) -> GenerationOutput:
        await asyncio.sleep(0.001 * (request.seed or 0) % 7)
        return answer(request)

    async def play() -> list:
        player = GroupPlayer(one_by_one, {"count": CountDown()}, FakeTokenizer(), SETTINGS, 3, threads=2)
        groups = await asyncio.gather(*(player.play(*pair) for pair in zip(prompts(), IDS, strict=True)))
        player.close()
        return groups

    played = asyncio.run(play())
    assert [group.rollouts for group in played] == [group.rollouts for group in batched]
    assert [rollout.turns for rollout in played[1].rollouts] == [3, 3, 3]
    assert played[1].rollouts[0].reward == 1.5


def test_the_first_error_of_a_sample_is_the_groups_and_the_others_are_cancelled() -> None:
    cancelled: list[str] = []

    async def generate(request: GenerationRequest) -> GenerationOutput:
        if request.request_id.endswith("/1/0"):
            raise LookupError("no such layer")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.request_id)
            raise
        return answer(request)

    async def play() -> None:
        player = GroupPlayer(generate, {"count": CountDown()}, FakeTokenizer(), SETTINGS, 3, threads=1)
        await player.play(prompts()[0], IDS[0])

    with pytest.raises(LookupError, match="no such layer"):
        asyncio.run(play())
    assert sorted(cancelled) == ["epoch0/row:1/0/0", "epoch0/row:1/2/0"]


def test_a_samples_seed_depends_on_run_group_sample_and_turn_alone() -> None:
    seeds = {sample_seed(run, group, i, turn) for run in (1, 2) for group in IDS for i in (0, 1) for turn in (0, 1)}
    assert len(seeds) == 16
    assert sample_seed(1, IDS[0], 0, 0) == sample_seed(1, IDS[0], 0, 0)
    assert all(0 <= seed < 2**31 for seed in seeds)
