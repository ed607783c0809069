"""A sync survives the death of an engine and nothing else."""

from collections.abc import Sequence

import pytest

from nemo_rl.generation.generation import MOST_RESTARTS
from nemo_rl.weight_sync.interfaces import WeightSyncError
from nemo_rl.weight_sync.publisher import sync_despite_deaths
from nemo_rl.weight_sync.synchronizer import Moved, SyncReport


class Engines:
    """`deaths`: which replicas are found dead after each failed sync."""

    def __init__(self, deaths: Sequence[list[int]]) -> None:
        self.deaths = list(deaths)

    def restart_dead(self) -> list[int]:
        return self.deaths.pop(0)


class Synchronizer:
    """Fails as often as told."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, []

    def connect(self) -> None:
        self.calls.append("connect")

    def sync(self, version: int, recompute_cache: bool) -> SyncReport:
        self.calls.append(f"sync {version}")
        if self.failures:
            self.failures -= 1
            raise WeightSyncError("weight sync of version 3 failed: layer 2 arrived damaged")
        return SyncReport(version, Moved(8, 1, 1), 0.1, None)


def test_after_an_engine_was_replaced_both_ends_connect_and_the_sync_is_done_again() -> None:
    synchronizer = Synchronizer(failures=2)
    report = sync_despite_deaths(Engines([[1], [0, 1]]), synchronizer, 3)  # type: ignore[arg-type]
    assert report.version == 3
    assert synchronizer.calls == ["sync 3", "connect", "sync 3", "connect", "sync 3"]


def test_a_failure_without_a_death_is_the_callers() -> None:
    synchronizer = Synchronizer(failures=1)
    with pytest.raises(WeightSyncError, match="layer 2 arrived damaged"):
        sync_despite_deaths(Engines([[]]), synchronizer, 3)  # type: ignore[arg-type]
    assert synchronizer.calls == ["sync 3"]


def test_engines_that_die_at_every_sync_end_the_run() -> None:
    synchronizer = Synchronizer(failures=100)
    with pytest.raises(WeightSyncError):
        sync_despite_deaths(Engines([[0]] * 100), synchronizer, 3)  # type: ignore[arg-type]
    assert synchronizer.calls.count("sync 3") == MOST_RESTARTS + 1
