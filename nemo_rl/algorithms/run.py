"""What a run consists of while it runs: components, state, and when things are due."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_rl.algorithms.losses import Loss
from nemo_rl.config.schema import MasterConfig, TrainingConfig
from nemo_rl.data.interfaces import Prompt
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.rollouts import RolloutRunner
from nemo_rl.policy.policy import Policy
from nemo_rl.utils.checkpoint import CheckpointManager
from nemo_rl.utils.flops import TrainingFlops
from nemo_rl.utils.logger import RunLogger
from nemo_rl.utils.monitor import SystemMonitor
from nemo_rl.utils.progress import RunProgress
from nemo_rl.utils.stopping import TerminationFlag, TimeoutChecker
from nemo_rl.utils.timer import Timer


class RolloutSource(Protocol):
    """Where a step's groups come from: generated now, taken from a buffer, or read from disk."""

    def next_groups(self, version: int) -> list[RolloutGroup]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def metrics(self) -> dict[str, float]: ...


class Publisher(Protocol):
    """Moves weights to the engine and, where devices are shared, memory between the two."""

    def publish(self, version: int) -> dict[str, float]: ...

    def training_phase(self) -> None: ...

    def policy_on_device(self) -> AbstractContextManager[None]: ...


class DataPosition(Protocol):
    """What of the data has been used, as a checkpoint keeps it."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class RunState:
    """What a checkpoint has to restore besides weights, optimizer and data position."""

    step: int = 0
    consumed_samples: int = 0
    total_valid_tokens: int = 0
    best_metric: float | None = None


@dataclass(kw_only=True)
class TrainingRun:
    """What every training run has, whatever its algorithm."""

    config: TrainingConfig
    policy: Policy
    loss: Loss
    logger: RunLogger
    checkpoints: CheckpointManager | None
    monitor: SystemMonitor | None
    progress: RunProgress
    termination: TerminationFlag
    deadline: TimeoutChecker
    total_steps: int
    devices: dict[str, int]
    flops: TrainingFlops
    state: RunState = field(default_factory=RunState)
    timer: Timer = field(default_factory=Timer)
    stopping: str | None = None

    @property
    def data_position(self) -> DataPosition:
        raise NotImplementedError

    def policy_on_device(self) -> AbstractContextManager[None]:
        """For what reads the policy between steps, as a checkpoint does. Without an engine it never leaves."""
        return nullcontext()

    def begin_step(self) -> None:
        self.timer.reset()

    @contextmanager
    def stage(self, name: str, timed: str | None = None) -> Iterator[None]:
        """Name a stage of the step, on the display and in timing/train/*."""
        with self.progress.stage(name), self.timer(timed or name):
            yield

    def steps_done(self) -> int:
        return self.state.step

    def finished(self) -> bool:
        """All steps are done, or the run was told to stop (SIGTERM, `checkpoint_must_save_by`)."""
        return self.stopping is not None or self.steps_done() >= self.total_steps

    def due(self, period: int, at_end: bool) -> bool:
        """Whether what happens every `period` steps, or after the last one, happens after this one."""
        return (period > 0 and self.state.step % period == 0) or (at_end and self.state.step >= self.total_steps)

    def note_stop(self) -> None:
        """After each step: remembers in `stopping` why the run ends early, if it does."""
        if self.termination:
            self.stopping = "SIGTERM"
        elif self.deadline.must_save():
            limit = self.config.checkpointing.checkpoint_must_save_by
            self.stopping = f"checkpointing.checkpoint_must_save_by={limit}"

    def save_due(self) -> bool:
        """Whether this step is saved: when it is due, or the last before an early end."""
        self.note_stop()
        settings = self.config.checkpointing
        if self.checkpoints is None:
            return False
        return self.stopping is not None or self.due(settings.save_period, settings.save_at_end)


@dataclass(kw_only=True)
class Run(TrainingRun):
    """One GRPO run."""

    config: MasterConfig
    rollouts: RolloutSource
    publisher: Publisher
    runner: RolloutRunner | None
    validation_prompts: list[Prompt]
    engines: list[dict[str, Any]] = field(default_factory=list)
    rollout_steps: int = 0

    @property
    def data_position(self) -> DataPosition:
        return self.rollouts

    def policy_on_device(self) -> AbstractContextManager[None]:
        return self.publisher.policy_on_device()

    @property
    def needs_reference(self) -> bool:
        grpo, loss = self.config.grpo, self.config.loss_fn
        return not grpo.skip_reference_policy_logprobs_calculation and loss.reference_policy_kl_penalty > 0

    def steps_done(self) -> int:
        return self.rollout_steps if self.config.debug.rollouts_only else self.state.step

    def validation_due(self) -> bool:
        grpo = self.config.grpo
        return bool(self.validation_prompts) and self.due(grpo.val_period, grpo.val_at_end)
