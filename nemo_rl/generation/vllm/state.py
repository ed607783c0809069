"""What both engine workers share: which weights they hold, and how vLLM names the end of a generation."""

from nemo_rl.generation.interfaces import FinishReason
from nemo_rl.weight_sync.interfaces import WeightSyncError

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def finish_reason(request_id: str, name: str) -> FinishReason:
    if name not in _FINISH_REASONS:
        raise RuntimeError(f"vLLM ended request {request_id} with finish reason {name!r}")
    return _FINISH_REASONS[name]


class EngineState:
    """Which weights the engine holds; None while it has none, or only part of a set."""

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.version: int | None = None
        self.receiving: int | None = None
        self.failure: str | None = None

    def begin(self, version: int) -> None:
        self.version, self.receiving, self.failure = None, version, None

    def complete(self, version: int) -> None:
        self.version, self.receiving = version, None

    def fail(self, version: int, reason: str) -> None:
        self.version, self.receiving = None, None
        self.failure = f"the sync of version {version} failed: {reason}"

    def require_weights(self) -> int:
        if self.version is not None:
            return self.version
        why = self.failure
        if why is None and self.receiving is not None:
            why = f"the sync of version {self.receiving} did not finish"
        raise WeightSyncError(
            f"engine {self.replica} has no complete weights{f' ({why})' if why else ''}: it generates again "
            "once a weight sync completes"
        )
