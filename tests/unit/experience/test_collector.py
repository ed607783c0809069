"""The collector over stand-in engines: what it keeps under way, what it loses, how it fails."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nemo_rl.environments.interfaces import EnvironmentInput, EnvironmentOutput
from nemo_rl.experience.collector import Collector, CollectorStarved, Taken
from nemo_rl.experience.engine_pool import MOST_LOSSES, GenerationFailed
from nemo_rl.generation.interfaces import GenerationRequest

from .fakes import BrokenSync, FakeEngine, FakeTokenizer, prompts, settings

Scenario = Callable[[], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Run a scenario to its end, which must not take long."""

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def start(engines: list[FakeEngine], number: int = 8, **changes: Any) -> tuple[Collector, asyncio.Task[None]]:
    collector = Collector(settings(**changes), prompts(number), FakeTokenizer(), engines)
    return collector, asyncio.create_task(collector.run())


def ids(taken: Taken) -> list[str]:
    return [group.group_id for group in taken.groups]


async def never(request: GenerationRequest) -> None:
    await asyncio.Event().wait()


def test_groups_come_in_order_and_within_the_age_limit_across_epochs() -> None:
    """Three prompts and two groups a step: an epoch ends in the middle of a step, and nothing stops."""

    async def scenario() -> None:
        engine = FakeEngine()
        collector, _ = start([engine], number=3)
        seen: list[str] = []
        for version in range(5):
            engine.version = version
            await collector.resume(version, [engine])
            taken = await collector.take(5.0)
            assert all(version - g.rollouts[0].oldest_version <= 1 for g in taken.groups)
            seen += ids(taken)
        assert seen == [f"epoch{n // 3}/row:{n % 3}" for n in range(10)]
        assert all(r.reward == 1.0 for g in taken.groups for r in g.rollouts)
        await collector.stop()

    play(scenario)


def test_nothing_begins_before_weights_and_no_more_than_the_bound_after() -> None:
    async def scenario() -> None:
        engine = FakeEngine(delay=never)
        collector, _ = start([engine])
        await asyncio.sleep(0.05)
        assert engine.requests == []
        await collector.resume(0, [engine])
        await asyncio.sleep(0.05)
        assert len(collector.tasks) == 4
        assert len(engine.requests) == 8
        await collector.stop()

    play(scenario)


def test_a_prompt_that_never_finishes_is_named_when_training_starves() -> None:
    async def slow_first(request: GenerationRequest) -> None:
        if request.request_id.startswith("epoch0/row:0/"):
            await never(request)

    async def scenario() -> None:
        engine = FakeEngine(delay=slow_first)
        collector, _ = start([engine])
        await collector.resume(0, [engine])
        assert ids(await collector.take(5.0)) == ["epoch0/row:1", "epoch0/row:2"]
        await collector.resume(1, [engine])
        with pytest.raises(CollectorStarved, match=r"training waits for epoch0/row:0, which would become too old"):
            await collector.take(0.2)
        await collector.stop()

    play(scenario)


def test_an_environments_exception_ends_run_and_take_with_itself() -> None:
    class Broken:
        def step(self, batch: list[EnvironmentInput]) -> list[EnvironmentOutput]:
            raise ZeroDivisionError("the grader divided by zero")

        def close(self) -> None: ...

    async def scenario() -> None:
        engine = FakeEngine()
        collector, run = start([engine])
        collector.environments["exact_match"] = Broken()  # type: ignore[assignment]
        await collector.resume(0, [engine])
        with pytest.raises(ZeroDivisionError, match="divided by zero"):
            await collector.take(5.0)
        with pytest.raises(ZeroDivisionError):
            await run
        await collector.stop()

    play(scenario)


def test_requests_of_a_killed_engine_are_issued_again_with_their_seeds() -> None:
    async def scenario() -> None:
        dying, replacement = FakeEngine(delay=never), FakeEngine()
        collector, _ = start([dying])
        await collector.resume(0, [dying])
        await asyncio.sleep(0.05)
        dying.kill()
        taken = await collector.take(5.0)
        assert taken.groups == [] and taken.dead == [0]
        await collector.resume(0, [replacement])
        assert ids(await collector.take(5.0)) == ["epoch0/row:0", "epoch0/row:1"]
        first = {request.request_id: request.seed for request in dying.requests}
        again = {request.request_id: request.seed for request in replacement.requests}
        assert first.items() <= again.items()
        assert collector.metrics()["reissued_requests"] == 8
        await collector.stop()

    play(scenario)


def test_with_two_replicas_the_other_one_takes_over_at_once() -> None:
    async def scenario() -> None:
        dying, living = FakeEngine(delay=never), FakeEngine()
        collector, _ = start([dying, living])
        await collector.resume(0, [dying, living])
        await asyncio.sleep(0.05)
        dying.kill()
        while (await collector.take(5.0)).dead:
            await collector.resume(0, [FakeEngine(), living])
        await collector.stop()

    play(scenario)


def test_requests_of_engines_that_survive_a_broken_sync_wait_for_the_next_and_keep_their_seeds() -> None:
    async def scenario() -> None:
        sync = BrokenSync()
        dying, surviving, replacement = FakeEngine(delay=never), FakeEngine(delay=sync), FakeEngine()
        collector, run = start([dying, surviving])
        await collector.resume(0, [dying, surviving])
        await asyncio.sleep(0.05)
        assert (len(dying.requests), len(surviving.requests)) == (4, 4)
        await collector.pause("the weight sync", False, 1.0)
        dying.kill()
        sync.break_off()
        await asyncio.sleep(0.05)
        # its own four, and those that the dead engine had: each asked once
        assert sync.refusals == 8
        assert "8 requests wait for a weight sync that completes" in collector.describe()
        assert not run.done() and collector.failures == 0

        sync.heal()
        await collector.resume(1, [replacement, surviving])
        assert ids(await collector.take(5.0)) == ["epoch0/row:0", "epoch0/row:1"]
        requests = [*dying.requests, *surviving.requests, *replacement.requests]
        assert len({request.request_id for request in requests}) == len(
            {(request.request_id, request.seed) for request in requests}
        )
        assert collector.metrics()["reissued_requests"] == 4 + 8
        assert "weight sync" not in collector.describe()
        await collector.stop()

    play(scenario)


def test_a_refusal_that_arrives_after_the_sync_was_done_again_waits_for_nothing() -> None:
    async def scenario() -> None:
        sync = BrokenSync()
        engine = FakeEngine(delay=sync)
        collector, _ = start([engine])
        await collector.resume(0, [engine])
        await asyncio.sleep(0.05)
        await collector.resume(1, [engine])
        sync.heal()
        sync.break_off()
        assert len((await collector.take(5.0)).groups) == 2
        await collector.stop()

    play(scenario)


def test_a_request_that_every_sync_breaks_off_under_is_given_up() -> None:
    async def scenario() -> None:
        sync = BrokenSync()
        sync.break_off()
        engine = FakeEngine(delay=sync)
        collector, run = start([engine])
        for version in range(MOST_LOSSES + 1):
            assert not run.done()
            await collector.resume(version, [engine])
            await asyncio.sleep(0.02)
        await collector.resume(version + 1, [engine])
        with pytest.raises(GenerationFailed, match=r"was lost 6 times: the sync of version 1 failed: a worker process"):
            await run
        await collector.stop()

    play(scenario)


@pytest.mark.parametrize("allowed", [0, 1])
def test_failed_generations_drop_their_group_until_there_are_too_many(allowed: int) -> None:
    async def fail_two(request: GenerationRequest) -> None:
        if request.request_id.split("/")[1] in ("row:0", "row:5"):
            raise ValueError(f"the engine refused {request.request_id}")

    async def scenario() -> None:
        engine = FakeEngine(delay=fail_two)
        collector, run = start([engine], max_failures=allowed)
        await collector.resume(0, [engine])
        if allowed:
            assert ids(await collector.take(5.0)) == ["epoch0/row:1", "epoch0/row:2"]
            await collector.resume(1, [engine])
        with pytest.raises(GenerationFailed, match="refused epoch0/row:"):
            await run
        assert collector.buffer.dropped["generation_failed"] > allowed
        await collector.stop()

    play(scenario)


def test_draining_waits_for_requests_under_way_and_issues_none() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def wait(request: GenerationRequest) -> None:
            await gate.wait()

        engine = FakeEngine(delay=wait)
        collector, _ = start([engine])
        await collector.resume(0, [engine])
        await asyncio.sleep(0.05)
        pause = asyncio.create_task(collector.pause("the weight sync", True, 5.0))
        await asyncio.sleep(0.05)
        assert not pause.done()
        gate.set()
        await pause
        assert collector.pool.active == 0
        begun = len(engine.requests)
        await asyncio.sleep(0.05)
        assert len(engine.requests) == begun
        await collector.resume(1, [engine])
        assert len((await collector.take(5.0)).groups) == 2
        await collector.stop()

    play(scenario)


def test_resume_begins_again_what_was_not_trained_on_and_loses_and_repeats_nothing() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        collector, _ = start([engine])
        await collector.resume(0, [engine])
        trained = ids(await collector.take(5.0))
        await collector.resume(1, [engine])
        state = await collector.state_dict()
        await collector.stop()

        engine = FakeEngine()
        collector, _ = start([engine])
        await collector.load_state_dict(state)
        for version in range(1, 5):
            engine.version = version
            await collector.resume(version, [engine])
            trained += ids(await collector.take(5.0))
        assert trained == [f"epoch{n // 8}/row:{n % 8}" for n in range(10)]
        await collector.stop()

    play(scenario)


def test_a_stage_that_pauses_collection_is_named_in_the_description() -> None:
    async def scenario() -> None:
        collector, _ = start([FakeEngine()])
        await collector.pause("validation", False, 1.0)
        assert "paused for validation" in collector.describe()
        assert "no weights have arrived yet" in collector.describe()
        await collector.stop()

    play(scenario)
