"""Moves one version of the weights from all training ranks to all engines, bucket by bucket."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemo_rl.config.schema import WeightSyncConfig
from nemo_rl.distributed.calls import gather
from nemo_rl.generation.generation import Generation
from nemo_rl.policy.policy import Policy
from nemo_rl.utils.timer import Timer
from nemo_rl.weight_sync.interfaces import Bucket, WeightSyncError

logger = logging.getLogger(__name__)


@dataclass
class Moved:
    """Counts of one pass over the weights, and the seconds that it waited for either side."""

    nbytes: int = 0
    tensors: int = 0
    buckets: int = 0
    export_seconds: float = 0.0
    load_seconds: float = 0.0


@dataclass(frozen=True)
class SyncReport:
    """What one synchronisation moved and how long it took.

    `seconds` is all of it but the comparison; `export_seconds` waited for the trainer to gather, merge and pack,
    `load_seconds` for the engines to receive and load. What of the one is hidden behind the other is in neither.
    """

    version: int
    moved: Moved
    seconds: float
    verify_seconds: float | None

    def metrics(self) -> dict[str, float]:
        verified = {} if self.verify_seconds is None else {"refit/verify_seconds": self.verify_seconds}
        return verified | {
            "refit/bytes": float(self.moved.nbytes),
            "refit/buckets": float(self.moved.buckets),
            "refit/seconds": self.seconds,
            "refit/export_seconds": self.moved.export_seconds,
            "refit/load_seconds": self.moved.load_seconds,
        }


class WeightSynchronizer:
    """Bucket i + 1 is gathered, merged and packed by the trainer while the engines load bucket i.

    `connect` opens both ends of the transport; call it again after an engine was replaced.
    """

    def __init__(
        self,
        policy: Policy,
        generation: Generation,
        config: WeightSyncConfig,
        bucket_bytes: int,
        connect: Callable[[], None],
    ) -> None:
        self.policy, self.generation, self.config = policy, generation, config
        self.bucket_bytes, self.connect = bucket_bytes, connect
        self.count = 0

    def sync(self, version: int, recompute_cache: bool = False) -> SyncReport:
        """Publish the policy's present weights as `version`; running requests keep or recompute their KV cache.

        Raises WeightSyncError with the failing side's own message; engines then refuse to generate until a later sync
        completes, and the trainer's weights are untouched.
        """
        start = time.perf_counter()
        self.count += 1
        verify = self.config.verify_every > 0 and (self.count - 1) % self.config.verify_every == 0
        try:
            self.generation.call("begin_update", version, deadline_s=self.config.deadline_s)
            moved = self._stream(version, verify_only=False)
            before = time.perf_counter()
            if verify:
                self._stream(version, verify_only=True)
            verifying = time.perf_counter() - before
            self.generation.call(
                "finish_update", version, recompute_cache=recompute_cache, deadline_s=self.config.deadline_s
            )
            # Only now: the engines have let go of the buffers, which can be freed.
            self.policy.call("end_export", deadline_s=self.config.deadline_s)
        except Exception as error:
            self.generation.fail_update(version, str(error))
            raise WeightSyncError(f"weight sync of version {version} failed: {error}") from error
        seconds = time.perf_counter() - start - verifying
        return SyncReport(version, moved, seconds, verifying if verify else None)

    def _stream(self, version: int, verify_only: bool) -> Moved:
        deadline = self.config.deadline_s
        self.policy.call("begin_export", version, self.bucket_bytes, self.config.checksums, deadline_s=deadline)
        loading: list[Any] = []
        names = self.generation.names + self.policy.names
        moved, timer = Moved(), Timer()
        while True:
            with timer("export"):
                bucket = self._next_bucket()
            with timer("load"):
                gather(loading, "engine.load_bucket", deadline, names)
            if bucket is None:
                break
            sending = [w.send_bucket.remote(bucket) for w in self.policy.workers]
            loading = self.generation.load_bucket(bucket, verify_only) + sending
            moved.nbytes, moved.buckets = moved.nbytes + bucket.nbytes, moved.buckets + 1
            moved.tensors += len(bucket.entries)
        seconds = timer.seconds()
        moved.export_seconds, moved.load_seconds = seconds["export"], seconds["load"]
        return moved

    def _next_bucket(self) -> Bucket | None:
        """All ranks produce the bucket together; its handles are those of every rank that serves an engine."""
        parts = self.policy.call("next_bucket", deadline_s=self.config.deadline_s)
        if parts[0] is None:
            return None
        handles = {key: handle for part in parts for key, handle in part.handles.items()}
        first: Bucket = parts[0]
        return Bucket(first.version, first.index, first.entries, first.nbytes, handles)
