"""Plays episodes in step: the engine writes a turn of all of them, the environments answer, until all are over."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import Environment
from nemo_rl.experience.episodes import Episode, RolloutSettings, episodes_of
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest

Generate = Callable[[Sequence[GenerationRequest]], list[GenerationOutput]]


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
        episodes = episodes_of(prompts, group_ids, samples)
        while active := [episode for episode in episodes if not episode.over]:
            self._take_turn(active, settings)
        finished = [episode.rollout() for episode in episodes]
        return [
            RolloutGroup(group_id, finished[i * samples : (i + 1) * samples]) for i, group_id in enumerate(group_ids)
        ]

    def _take_turn(self, active: list[Episode], settings: RolloutSettings) -> None:
        requests = [episode.request(settings) for episode in active]
        for episode, output in zip(active, self.generate(requests), strict=True):
            episode.append_turn(output, self.tokenizer)
        for name in {episode.prompt.env_name for episode in active}:
            asked = [episode for episode in active if episode.prompt.env_name == name]
            outcomes = self.environments[name].step([episode.environment_input() for episode in asked])
            for episode, outcome in zip(asked, outcomes, strict=True):
                episode.apply(outcome, settings, self.tokenizer)
