"""When weights and memory move between trainer and engine: the phases of a step."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from nemo_rl.generation.generation import MOST_RESTARTS, Generation
from nemo_rl.policy.policy import Policy
from nemo_rl.weight_sync.interfaces import WeightSyncError
from nemo_rl.weight_sync.synchronizer import SyncReport, WeightSynchronizer

logger = logging.getLogger(__name__)


class ColocatedPublisher:
    """Trainer and engine take turns on the same devices; the one that is idle gives its memory back."""

    def __init__(
        self, policy: Policy, generation: Generation, synchronizer: WeightSynchronizer, measure_every: int
    ) -> None:
        self.policy, self.generation, self.synchronizer = policy, generation, synchronizer
        self.measure_every = measure_every
        self.version = 0

    def publish(self, version: int) -> dict[str, float]:
        """Move the weights, then the devices, to the engine: only what the transfer needs is resident during it."""
        retained = retention(self.policy, version, self.measure_every)
        self.version = version
        return self._hand_over().metrics() | retained

    def _hand_over(self) -> SyncReport:
        self.policy.offload("before_sync")
        self.generation.wake(["weights"])
        report = sync_despite_deaths(self.generation, self.synchronizer, self.version)
        self.policy.offload("after_sync")
        self.generation.wake(["kv_cache"])
        return report

    def training_phase(self) -> None:
        self.generation.sleep()
        self.policy.onload()

    @contextmanager
    def policy_on_device(self) -> Iterator[None]:
        """The policy takes the devices back, and then gives them to the engine again, which needs a sync for it."""
        self.training_phase()
        yield
        self._hand_over()

    def recover(self) -> None:
        """Replace engines that died and bring all back to the weights that they had."""
        self.generation.restart_dead()
        self.synchronizer.connect()
        self.training_phase()
        self.publish(self.version)


class SeparatePublisher:
    """Trainer and engine have their own devices; nothing has to move away. Requests under way, if any, go on with the
    new weights, on their old KV cache or with `recompute_cache` on a new one."""

    def __init__(
        self,
        policy: Policy,
        generation: Generation,
        synchronizer: WeightSynchronizer,
        measure_every: int,
        recompute_cache: bool = False,
    ) -> None:
        self.policy, self.generation, self.synchronizer = policy, generation, synchronizer
        self.measure_every, self.recompute_cache = measure_every, recompute_cache
        self.version = 0

    def publish(self, version: int) -> dict[str, float]:
        self.version = version
        report = sync_despite_deaths(self.generation, self.synchronizer, version, self.recompute_cache)
        return report.metrics() | retention(self.policy, version, self.measure_every)

    def training_phase(self) -> None:
        """Nothing to do."""

    def policy_on_device(self) -> AbstractContextManager[None]:
        return nullcontext()

    def recover(self) -> None:
        """Replace engines that died and bring all back to the weights that they had."""
        self.generation.restart_dead()
        self.synchronizer.connect()
        sync_despite_deaths(self.generation, self.synchronizer, self.version, self.recompute_cache)


class NoPublisher:
    """Training from saved rollouts: there is no engine."""

    def publish(self, version: int) -> dict[str, float]:
        return {}

    def training_phase(self) -> None:
        """Nothing to do."""

    def policy_on_device(self) -> AbstractContextManager[None]:
        return nullcontext()


def sync_despite_deaths(
    generation: Generation, synchronizer: WeightSynchronizer, version: int, recompute_cache: bool = False
) -> SyncReport:
    """A sync during which an engine dies is done again with its replacement. Any other failure is the caller's."""
    for _ in range(MOST_RESTARTS):
        try:
            return synchronizer.sync(version, recompute_cache)
        except WeightSyncError as error:
            if not generation.restart_dead():
                raise
            logger.warning("syncing again after an engine was replaced: %s", error)
            synchronizer.connect()
    return synchronizer.sync(version, recompute_cache)


def retention(policy: Policy, version: int, every: int) -> dict[str, float]:
    """refit/delta_retained and refit/weights_moved of the present adapters, every so many versions."""
    if every == 0 or version % every:
        return {}
    return {f"refit/{name}": value for name, value in policy.call("merge_retention")[0].items()}
