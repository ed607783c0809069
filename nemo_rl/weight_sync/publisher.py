"""When weights and memory move between trainer and engine: the phases of a step."""

from nemo_rl.generation.generation import Generation
from nemo_rl.policy.policy import Policy
from nemo_rl.weight_sync.synchronizer import WeightSynchronizer


class ColocatedPublisher:
    """Trainer and engine take turns on the same devices; the one that is idle gives its memory back."""

    def __init__(
        self, policy: Policy, generation: Generation, synchronizer: WeightSynchronizer, measure_every: int
    ) -> None:
        self.policy, self.generation, self.synchronizer = policy, generation, synchronizer
        self.measure_every = measure_every

    def publish(self, version: int) -> dict[str, float]:
        """Move the weights, then the devices, to the engine: only what the transfer needs is resident during it."""
        retained = retention(self.policy, version, self.measure_every)
        self.policy.offload("before_sync")
        self.generation.wake(["weights"])
        report = self.synchronizer.sync(version)
        self.policy.offload("after_sync")
        self.generation.wake(["kv_cache"])
        return report.metrics() | retained

    def training_phase(self) -> None:
        self.generation.sleep()
        self.policy.onload()


class SeparatePublisher:
    """Trainer and engine have their own devices; nothing has to move away."""

    def __init__(self, policy: Policy, synchronizer: WeightSynchronizer, measure_every: int) -> None:
        self.policy, self.synchronizer, self.measure_every = policy, synchronizer, measure_every

    def publish(self, version: int) -> dict[str, float]:
        return self.synchronizer.sync(version).metrics() | retention(self.policy, version, self.measure_every)

    def training_phase(self) -> None:
        """Nothing to do."""


class NoPublisher:
    """Training from saved rollouts: there is no engine."""

    def publish(self, version: int) -> dict[str, float]:
        return {}

    def training_phase(self) -> None:
        """Nothing to do."""


def retention(policy: Policy, version: int, every: int) -> dict[str, float]:
    """refit/delta_retained and refit/weights_moved of the present adapters, every so many versions."""
    if every == 0 or version % every:
        return {}
    return {f"refit/{name}": value for name, value in policy.call("merge_retention")[0].items()}
