"""Publishes weights while a collector keeps the engines busy."""

import time
from contextlib import AbstractContextManager

from nemo_rl.experience.async_source import Collection
from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync.publisher import SeparatePublisher


class CollectingPublisher:
    """In flight: engines freeze for the length of a sync and go on. Otherwise they finish what they have first."""

    def __init__(self, inner: SeparatePublisher, collection: Collection, timer: Timer, in_flight: bool) -> None:
        self.inner, self.collection, self.timer, self.in_flight = inner, collection, timer, in_flight

    def publish(self, version: int) -> dict[str, float]:
        start = time.perf_counter()
        self.collection.pause("the weight sync", drain=not self.in_flight)
        metrics = self.inner.publish(version)
        self.collection.resume(version)
        self.timer.add("idle/refit_bubble", time.perf_counter() - start)
        return metrics

    def training_phase(self) -> None:
        """Nothing to do."""

    def policy_on_device(self) -> AbstractContextManager[None]:
        return self.inner.policy_on_device()

    def recover(self) -> None:
        """Replace engines that died; the collector issues what they had again."""
        self.inner.recover()
        self.collection.resume(self.inner.version)
