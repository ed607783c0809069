"""The async engine in this process: weights that change while it generates. Float32, greedy, so that equal is equal."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from nemo_rl.config.loader import load_config
from nemo_rl.config.schema import MasterConfig
from nemo_rl.generation.interfaces import (
    EngineLost,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    SamplingSettings,
)
from nemo_rl.generation.vllm.environment import engine_environment
from nemo_rl.utils.tiny_model import resolve_model
from nemo_rl.weight_sync.buckets import BucketStream
from nemo_rl.weight_sync.interfaces import Bucket, TensorEntry, WeightSyncError
from nemo_rl.weight_sync.process_group import LOOPBACK, ProcessGroupSender

CONFIG = Path(__file__).parents[3] / "examples" / "configs" / "grpo_tiny_cpu_async.yaml"
PROMPT = tuple(range(3, 40))
LENGTH = 160


class Engine:
    """A VllmAsyncWorker with a loop to run it on and a trainer's end of the transport."""

    def __init__(self, config: MasterConfig, model_path: str) -> None:
        from transformers import AutoModelForCausalLM

        self.loop = asyncio.new_event_loop()
        self.tensors = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).state_dict()
        self.sender = ProcessGroupSender(True, 1, torch.device("cpu"), LOOPBACK, 60.0)
        self.worker: Any = self.run(self._start(config, model_path))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 120))

    async def _start(self, config: MasterConfig, model_path: str) -> Any:
        from nemo_rl.generation.vllm.async_worker import VllmAsyncWorker

        worker = VllmAsyncWorker(config, model_path, model_path, 0, cpu=True)
        settings = {"first_rank": 0, "receivers": 1, "deadline_s": 60.0}
        await worker.init_receiver("nemo_rl.weight_sync.transports:process_group_receiver", settings)
        return worker

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """The model of a version: everything moved a little, in a way of its own."""
        noise = torch.Generator().manual_seed(version)
        return {name: t + 0.05 * torch.randn(t.shape, generator=noise) for name, t in self.tensors.items()}

    async def publish(self, version: int, recompute: bool = False) -> None:
        await self.worker.begin_update(version)
        stream = BucketStream(self.weights(version).items(), self.sender, version, 1 << 20, checksums=True)
        while (bucket := stream.next()) is not None:
            self.sender.send(bucket)
            await self.worker.load_bucket(bucket)
        self.sender.finish()
        await self.worker.finish_update(version, recompute_cache=recompute)

    async def generate(self, *requests: GenerationRequest) -> list[GenerationOutput]:
        outputs: list[GenerationOutput] = await self.worker.generate(requests)
        return outputs

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    def tokens_so_far(self) -> list[int]:
        return sorted(len(sampling.tokens) for sampling in self.worker.running)


def request(name: str, prompt: tuple[int, ...] = PROMPT, length: int = LENGTH) -> GenerationRequest:
    return GenerationRequest(name, prompt, length, None, SamplingSettings(temperature=0.0, ignore_eos=True))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    changes = ["policy.max_total_sequence_length=256", "policy.generation_batch_size=4"]
    config = load_config(CONFIG, changes)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine_environment(config.policy.generation, cpu=True).items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CONFIG.parents[2]), os.environ.get("PYTHONPATH", "")]))
        engine = Engine(config, str(resolve_model(config.policy.model_name, tmp_path_factory.mktemp("models"))))
        yield engine
        engine.run(engine.worker.shutdown())
        engine.sender.close()


async def interrupted(engine: Engine, old: int, new: int, recompute: bool) -> GenerationOutput:
    """A request that begins with version `old` and ends with version `new`."""
    await engine.publish(old)
    under_way = asyncio.ensure_future(engine.generate(request(f"across-{old}-{new}")))
    await engine.until(lambda: bool(engine.tokens_so_far()) and engine.tokens_so_far()[0] >= 10)
    await engine.publish(new, recompute)
    return (await under_way)[0]


def test_a_request_spans_an_update_and_with_a_recomputed_cache_goes_on_as_a_fresh_engine_would(engine: Engine) -> None:
    output = engine.run(interrupted(engine, 1, 2, recompute=True))
    first, second = output.version_spans
    assert (first.version, second.version) == (1, 2)
    assert (first.start, first.end, second.end) == (0, second.start, LENGTH)
    before, after = output.token_ids[: first.end], output.token_ids[first.end :]

    (fresh,) = engine.run(engine.generate(request("fresh-2", PROMPT + before, len(after))))
    assert fresh.token_ids == after
    assert fresh.logprobs == pytest.approx(output.logprobs[first.end :], abs=2e-5)

    async def with_old_weights() -> GenerationOutput:
        await engine.publish(1)
        return (await engine.generate(request("fresh-1")))[0]

    assert engine.run(with_old_weights()).token_ids[: first.end] == before


def test_with_a_kept_cache_it_goes_on_but_no_later_request_sees_the_old_cache(engine: Engine) -> None:
    output = engine.run(interrupted(engine, 3, 4, recompute=False))
    assert [span.version for span in output.version_spans] == [3, 4]

    async def twice() -> list[GenerationOutput]:
        again = await engine.generate(request("again"))
        await engine.publish(4)
        return again + await engine.generate(request("with an empty cache"))

    again, fresh = engine.run(twice())
    assert again.token_ids == fresh.token_ids
    assert [span.version for span in again.version_spans] == [4]


def test_requests_that_wait_for_a_place_in_the_engine_start_with_the_new_weights(engine: Engine) -> None:
    """Four run at a time; four more with the same prompt, whose prefix is cached from the old weights, wait."""

    async def scenario() -> tuple[list[GenerationOutput], list[GenerationOutput]]:
        await engine.publish(5)
        under_way = asyncio.ensure_future(engine.generate(*(request(f"place-{i}") for i in range(8))))
        await engine.until(lambda: len(engine.tokens_so_far()) == 8 and engine.tokens_so_far()[4] >= 10)
        await engine.publish(6, recompute=False)
        outputs = await under_way
        return outputs, await engine.generate(request("fresh-6"))

    outputs, (fresh,) = engine.run(scenario())
    waited = [output for output in outputs if [s.version for s in output.version_spans] == [6]]
    assert len(waited) == 4
    assert all(output.token_ids == fresh.token_ids for output in waited)


def test_a_request_that_is_not_streamed_starts_over_when_an_update_meets_it(engine: Engine) -> None:
    async def scenario() -> tuple[GenerationOutput, GenerationOutput]:
        await engine.publish(5)
        under_way = asyncio.ensure_future(engine.generate(request("not streamed")))
        await asyncio.sleep(0.05)  # some of its tokens, which nobody has seen
        await engine.publish(6)
        assert not under_way.done()
        (fresh,) = await engine.generate(request("fresh"))
        return (await under_way)[0], fresh

    engine.worker.streams = False
    try:
        output, fresh = engine.run(scenario())
    finally:
        engine.worker.streams = True
    assert [span.version for span in output.version_spans] == [6]
    assert output.token_ids == fresh.token_ids and len(output.logprobs) == LENGTH


def test_a_rejected_update_fails_requests_with_its_reason_and_the_next_one_heals(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.publish(7)
        under_way = asyncio.ensure_future(engine.generate(request("unlucky")))
        await engine.until(lambda: bool(engine.tokens_so_far()) and engine.tokens_so_far()[0] >= 5)
        await engine.worker.begin_update(8)
        entry = TensorEntry("model.norm.weight", "float32", (4,), 0, 16, checksum=1)
        buffer = engine.sender.buffer(0, 256)
        bucket = Bucket(8, 0, (entry,), buffer.numel(), engine.sender.handle(0, buffer.numel()))
        engine.sender.send(bucket)
        with pytest.raises(Exception, match=r"model.norm.weight arrived damaged at version 8") as rejection:
            await engine.worker.load_bucket(bucket)
        await engine.worker.fail_update(8, str(rejection.value))
        with pytest.raises(WeightSyncError, match="version 8 failed"):
            await under_way
        with pytest.raises(WeightSyncError, match="arrived damaged"):
            await engine.generate(request("refused"))
        await engine.publish(9)
        (output,) = await engine.generate(request("healed"))
        assert [span.version for span in output.version_spans] == [9]

    engine.run(scenario())


def test_an_aborted_request_returns_what_it_has(engine: Engine) -> None:
    async def scenario() -> GenerationOutput:
        under_way = asyncio.ensure_future(engine.generate(request("short-lived")))
        await engine.until(lambda: bool(engine.tokens_so_far()) and engine.tokens_so_far()[0] >= 5)
        await engine.worker.abort(["short-lived"])
        return (await under_way)[0]

    output = engine.run(scenario())
    assert output.finish_reason is FinishReason.ABORT
    assert 5 <= len(output.token_ids) < LENGTH
    assert len(output.logprobs) == len(output.token_ids)


def test_a_stop_token_is_part_of_the_response_even_as_its_last_possible_token(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.publish(12)
        (free,) = await engine.generate(request("free"))
        stop = free.token_ids[20]
        end = free.token_ids.index(stop) + 1
        sampling = SamplingSettings(temperature=0.0, stop_token_ids=(stop,), ignore_eos=True)
        for limit, reason in ((LENGTH, FinishReason.STOP), (end, FinishReason.STOP), (end - 1, FinishReason.LENGTH)):
            (output,) = await engine.generate(GenerationRequest(f"{limit}", PROMPT, limit, None, sampling))
            assert output.token_ids == free.token_ids[: min(end, limit)]
            assert output.finish_reason is reason
            assert len(output.logprobs) == len(output.token_ids)

    engine.run(scenario())


def test_calls_under_way_and_later_ones_say_that_vllms_process_is_gone(engine: Engine) -> None:
    """Last, since no engine is left: vLLM itself would leave the call under way unanswered."""

    async def scenario() -> None:
        await engine.publish(10)
        request_under_way = asyncio.ensure_future(engine.generate(request("lost")))
        await engine.until(lambda: bool(engine.tokens_so_far()) and engine.tokens_so_far()[0] >= 5)
        await engine.worker.begin_update(11)
        buffer = engine.sender.buffer(0, 256)
        never_sent = Bucket(11, 0, (), buffer.numel(), engine.sender.handle(0, buffer.numel()))
        loading = asyncio.ensure_future(engine.worker.load_bucket(never_sent))
        await asyncio.sleep(0.5)
        for process in psutil.Process().children():
            if process.cmdline()[0].startswith("VLLM::EngineCore"):
                process.kill()
        for call in (loading, request_under_way, engine.worker.ping()):
            with pytest.raises(EngineLost, match="vLLM process of engine 0 ended"):
                await call

    engine.run(scenario())
