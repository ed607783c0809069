"""Stand-ins for engines and a tokenizer, so that a collector runs inside a test's own event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ray.exceptions import RayActorError

from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.settings import EnvironmentSettings
from nemo_rl.experience.collector import CollectorSettings
from nemo_rl.experience.episodes import RolloutSettings
from nemo_rl.generation.interfaces import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingSettings,
    VersionSpan,
)
from nemo_rl.weight_sync.interfaces import WeightSyncError


class FakeTokenizer:
    """Token i is character i."""

    eos_token_id = 0
    eos_token = chr(0)

    def apply_chat_template(self, messages: Sequence[Any], tokenize: bool, add_generation_prompt: bool) -> str:
        said = "".join(f"<{message['role']}>{message['content']}|" for message in messages)
        return said + ("<assistant>" if add_generation_prompt else "")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, tokens))


class BrokenSync:
    """A `delay` of engines whose weight sync breaks off and is done again: requests fail from `break_off` to `heal`."""

    def __init__(self) -> None:
        self.broken, self.healed, self.refusals = asyncio.Event(), False, 0

    async def __call__(self, request: GenerationRequest) -> None:
        if not self.healed:
            await self.broken.wait()
            self.refusals += 1
            raise WeightSyncError("the sync of version 1 failed: a worker process ended")

    def break_off(self) -> None:
        self.broken.set()

    def heal(self) -> None:
        self.healed = True


class FakeEngine:
    """Answers with the prompt's own tokens. `delay(request)` may wait or raise; `kill` fails all that is under way."""

    def __init__(self, delay: Callable[[GenerationRequest], Any] | None = None) -> None:
        self.delay = delay
        self.version = 0
        self.requests: list[GenerationRequest] = []
        self.death = asyncio.Event()
        self.generate = self

    def remote(self, requests: Sequence[GenerationRequest]) -> Any:
        return self._answer(requests[0])

    def kill(self) -> None:
        self.death.set()

    async def _answer(self, request: GenerationRequest) -> list[GenerationOutput]:
        self.requests.append(request)
        version = self.version
        work = asyncio.ensure_future(self.delay(request)) if self.delay else asyncio.ensure_future(asyncio.sleep(0))
        death = asyncio.ensure_future(self.death.wait())
        done, _ = await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
        if death in done:
            work.cancel()
            raise RayActorError(error_msg="the engine was killed")
        death.cancel()
        work.result()
        tokens = request.token_ids[:1]
        spans = (VersionSpan(0, 1, version),)
        return [GenerationOutput(request.request_id, tokens, (0.0,), FinishReason.STOP, spans)]


def prompts(number: int) -> list[Prompt]:
    return [
        Prompt(f"row:{i}", ({"role": "user", "content": "?"},), (65 + i,), "exact_match", {"ground_truth": chr(65 + i)})
        for i in range(number)
    ]


def settings(**changes: Any) -> CollectorSettings:
    """2 groups of 2 samples a step, at most one version old, in the order of the dataset."""
    values: dict[str, Any] = {
        "groups_per_step": 2,
        "samples": 2,
        "max_age": 1,
        "max_failures": 0,
        "shuffle": False,
        "seed": 1,
        "rollouts": RolloutSettings(4, 16, 1, SamplingSettings(), seed=5),
        "environments": {"exact_match": EnvironmentSettings()},
    }
    return CollectorSettings(**(values | changes))
