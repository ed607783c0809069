"""One rollout engine that takes requests one at a time, and new weights in the midst of them: an async Ray actor."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from nemo_rl.config.schema import MasterConfig
from nemo_rl.generation.interfaces import EngineLost, GenerationOutput, GenerationRequest
from nemo_rl.generation.vllm.sampling import Sampling
from nemo_rl.generation.vllm.state import EngineState
from nemo_rl.utils.logging_setup import setup_worker_logging
from nemo_rl.weight_sync.interfaces import Bucket

logger = logging.getLogger(__name__)

DEATH_NOTICED_S = 0.5


class VllmAsyncWorker:
    """Generation replica over vllm's AsyncLLM. Has the methods of VllmWorker.

    A weight update freezes the engine between two of its steps. Requests under way continue with the new weights,
    on their kept or recomputed KV cache; those that have no token yet start over, and new ones wait. Cached prefixes
    never serve another version: the version salts their hashes, and the cache is emptied whenever nothing runs.
    """

    def __init__(self, config: MasterConfig, model_path: str, tokenizer_path: str, replica: int, *, cpu: bool) -> None:
        setup_worker_logging(f"engine {replica}")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from nemo_rl.generation.vllm.engine_args import engine_arguments

        policy = config.policy
        self.state = EngineState(replica)
        self.checksums, self.deadline_s = config.weight_sync.checksums, config.weight_sync.deadline_s
        # Only an update in the midst of a request needs its tokens one by one, to know which weights each is from;
        # handing them out takes this process twice as long as keeping them until the end.
        self.streams = config.grpo.async_grpo.in_flight_weight_updates
        self.can_sleep = policy.generation.sleeps and not cpu
        self.running: set[Sampling] = set()
        self.weights_are_there = asyncio.Event()
        self.weights_are_there.set()
        arguments = engine_arguments(
            policy,
            model_path,
            tokenizer_path,
            cpu=cpu,
            seed=config.grpo.seed + replica,
            sleep_mode=self.can_sleep,
        )
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def ready(self) -> dict[str, Any]:
        from nemo_rl.generation.vllm.place import place_of_this_actor

        cache = self.engine.vllm_config.cache_config
        return {
            "replica": self.state.replica,
            "kv_cache_blocks": cache.num_gpu_blocks,
            "block_size": cache.block_size,
            **place_of_this_actor(),
        }

    async def ping(self) -> None:
        """Raises EngineLost when vLLM's own process is gone."""
        if self.engine.errored:
            raise EngineLost(self._ended)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Sample every request to its end. Raises WeightSyncError while no complete weights are loaded."""
        return list(await asyncio.gather(*(self._generate_one(request) for request in requests)))

    async def _generate_one(self, request: GenerationRequest) -> GenerationOutput:
        sampling = Sampling(request)
        self.running.add(sampling)
        try:
            while not sampling.finished:
                await self._await_weights()
                await self._sample(sampling)
        finally:
            self.running.discard(sampling)
        if self.state.failure is not None:
            self.state.require_weights()
        return sampling.output(self.state.replica)

    async def _sample(self, sampling: Sampling) -> None:
        """Until it is finished or told to start over."""
        from vllm.v1.engine.exceptions import EngineDeadError

        from nemo_rl.generation.vllm.engine_args import sampling_params

        sampling.begin()
        prompt = {"prompt_token_ids": list(sampling.request.token_ids), "cache_salt": f"weights {self.state.version}"}
        parameters = sampling_params(sampling.request, stream=self.streams)
        try:
            async for piece in self.engine.generate(prompt, parameters, sampling.engine_id):
                sampling.append(piece, self.state.version)
        except EngineDeadError:
            raise EngineLost(self._ended) from None

    async def _ask(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The answer to a call to vLLM's process; vLLM leaves calls unanswered that were under way when it ended."""
        from vllm.v1.engine.exceptions import EngineDeadError

        answer = asyncio.ensure_future(call)
        while not answer.done():
            await asyncio.wait([answer], timeout=DEATH_NOTICED_S)
            if self.engine.errored and not answer.done():
                answer.cancel()
                raise EngineLost(self._ended)
        try:
            return answer.result()
        except EngineDeadError:
            # without vLLM's exception, which whoever receives this one would have to import vLLM for
            raise EngineLost(self._ended) from None

    @property
    def _ended(self) -> str:
        return f"the vLLM process of engine {self.state.replica} ended"

    async def _await_weights(self) -> None:
        """While an update is under way new requests wait for it."""
        try:
            await asyncio.wait_for(self.weights_are_there.wait(), self.deadline_s)
        except TimeoutError:
            logger.error("engine %d waited %.0f s for an update to end", self.state.replica, self.deadline_s)
        self.state.require_weights()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; each returns what it has, with FinishReason.ABORT."""
        wanted = [s for s in self.running if s.request.request_id in set(request_ids)]
        await self._ask(self.engine.abort([s.engine_id for s in wanted]))

    async def init_receiver(self, factory: str, settings: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        request = WeightTransferInitRequest(init_info={"factory": factory, "settings": settings})
        await self._ask(self.engine.init_weight_transfer_engine(request))

    async def begin_update(self, version: int) -> None:
        """Freeze the engine between two steps, with every token sampled so far handed out under its version."""
        self.weights_are_there.clear()
        await self._ask(self.engine.pause_generation(mode="keep", clear_cache=False))
        await self._hand_out()
        self.state.begin(version)
        # A request that waits for its first step was hashed with the old version: its prefix may be cached from it.
        fresh = [sampling for sampling in self.running if sampling.start_over_if_untouched()]
        await self._ask(self.engine.abort([sampling.engine_id for sampling in fresh]))
        await self._ask(self.engine.collective_rpc("abandon_update"))
        await self._ask(self.engine.start_weight_update())

    async def _hand_out(self) -> None:
        """vLLM answers the pause on the channel that brings tokens, after them: all are in the client's queue by now.

        Its handler treats what it takes from the queue in one go (VLLM_V1_OUTPUT_PROC_CHUNK_SIZE), and each request's
        own task is due in the next round of the event loop.
        """
        while not self.engine.engine_core.outputs_queue.empty():
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)

    async def load_bucket(self, bucket: Bucket, verify_only: bool = False) -> int:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        from nemo_rl.generation.vllm.receiver import update_info

        info = update_info(bucket, self.checksums, verify_only)
        await self._ask(self.engine.update_weights(WeightTransferUpdateRequest(update_info=info)))
        return len(bucket.entries)

    async def finish_update(self, version: int, *, recompute_cache: bool = False) -> None:
        """Weights are complete: go on. `recompute_cache` makes running requests compute their KV cache again."""
        await self._ask(self.engine.finish_weight_update())
        if recompute_cache or not self.running:
            await self._ask(self.engine.reset_prefix_cache(reset_running_requests=recompute_cache))
        self.state.complete(version)
        await self._ask(self.engine.resume_generation())
        self.weights_are_there.set()

    async def fail_update(self, version: int, reason: str) -> None:
        """The sync broke off: requests fail with its reason, and none is taken until one completes."""
        self.state.fail(version, reason)
        await self._ask(self.engine.abort([sampling.engine_id for sampling in self.running]))
        self.weights_are_there.set()

    async def sleep(self) -> None:
        """Give device memory back. The weights need not survive: a sync precedes every use after training."""
        if self.can_sleep:
            await self._ask(self.engine.reset_prefix_cache())
            await self._ask(self.engine.sleep(level=2))
            self.state.version = None

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        if self.can_sleep:
            await self._ask(self.engine.wake_up(tags=list(tags) if tags else None))

    async def weights_version(self) -> int | None:
        return self.state.version

    async def memory_gib(self) -> list[dict[str, float]]:
        """Of each of vLLM's workers."""
        report: list[dict[str, float]] = await self._ask(self.engine.collective_rpc("memory_gib"))
        return report

    async def fill_weights(self, value: float) -> None:
        await self._ask(self.engine.collective_rpc("fill_weights", args=(value,)))

    async def shutdown(self) -> None:
        self.engine.shutdown()
