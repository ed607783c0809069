"""Plays the episodes of one group, each at its own pace."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import Environment
from nemo_rl.experience.episodes import Episode, RolloutSettings, episodes_of
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest

GenerateOne = Callable[[GenerationRequest], Awaitable[GenerationOutput]]


class GroupPlayer:
    """Like RolloutRunner, but one request at a time: a slow sample holds back nobody."""

    def __init__(
        self,
        generate: GenerateOne,
        environments: Mapping[str, Environment],
        tokenizer: Any,
        settings: RolloutSettings,
        samples: int,
        threads: int,
    ) -> None:
        self.generate, self.environments, self.tokenizer = generate, environments, tokenizer
        self.settings, self.samples = settings, samples
        # An environment may take its time over an answer; that must not keep others from being asked.
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="environment")

    async def play(self, prompt: Prompt, group_id: str) -> RolloutGroup:
        """Raises the first error of any sample, and cancels the others."""
        episodes = episodes_of([prompt], [group_id], self.samples)
        try:
            async with asyncio.TaskGroup() as tasks:
                for episode in episodes:
                    tasks.create_task(self._play_episode(episode))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return RolloutGroup(group_id, [episode.rollout() for episode in episodes])

    async def _play_episode(self, episode: Episode) -> None:
        loop = asyncio.get_running_loop()
        environment = self.environments[episode.prompt.env_name]
        while not episode.over:
            output = await self.generate(episode.request(self.settings))
            episode.append_turn(output, self.tokenizer)
            outcomes = await loop.run_in_executor(self.threads, environment.step, [episode.environment_input()])
            episode.apply(outcomes[0], self.settings, self.tokenizer)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
