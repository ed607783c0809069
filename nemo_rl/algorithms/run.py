"""What a run consists of while it runs: components, state, and when things are due."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_rl.algorithms.losses import Loss
from nemo_rl.config.schema import MasterConfig
from nemo_rl.data.interfaces import Prompt
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.rollouts import RolloutRunner
from nemo_rl.policy.policy import Policy
from nemo_rl.utils.checkpoint import CheckpointManager
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


@dataclass
class RunState:
    """What a checkpoint has to restore besides weights, optimizer and data position."""

    step: int = 0
    consumed_samples: int = 0
    total_valid_tokens: int = 0
    best_metric: float | None = None


@dataclass
class Run:
    """One training run."""

    config: MasterConfig
    policy: Policy
    rollouts: RolloutSource
    publisher: Publisher
    loss: Loss
    runner: RolloutRunner | None
    validation_prompts: list[Prompt]
    logger: RunLogger
    checkpoints: CheckpointManager | None
    monitor: SystemMonitor | None
    progress: RunProgress
    termination: TerminationFlag
    deadline: TimeoutChecker
    total_steps: int
    devices: dict[str, int]
    flops: Any
    engines: list[dict[str, Any]] = field(default_factory=list)
    state: RunState = field(default_factory=RunState)
    timer: Timer = field(default_factory=Timer)
    rollout_steps: int = 0
    stopping: str | None = None

    @property
    def needs_reference(self) -> bool:
        grpo, loss = self.config.grpo, self.config.loss_fn
        return not grpo.skip_reference_policy_logprobs_calculation and loss.reference_policy_kl_penalty > 0

    def begin_step(self) -> None:
        self.timer.reset()

    @contextmanager
    def stage(self, name: str, timed: str | None = None) -> Iterator[None]:
        """Name a stage of the step, on the display and in timing/train/*."""
        with self.progress.stage(name), self.timer(timed or name):
            yield

    def steps_done(self) -> int:
        return self.rollout_steps if self.config.debug.rollouts_only else self.state.step

    def finished(self) -> bool:
        """All steps are done, or the run was told to stop (SIGTERM, `checkpoint_must_save_by`)."""
        return self.stopping is not None or self.steps_done() >= self.total_steps

    def validation_due(self) -> bool:
        grpo = self.config.grpo
        if not self.validation_prompts:
            return False
        last = self.state.step >= self.total_steps
        return (grpo.val_period > 0 and self.state.step % grpo.val_period == 0) or (last and grpo.val_at_end)

    def save_due(self) -> bool:
        """Decides after each step; remembers in `stopping` why the run ends early."""
        if self.termination:
            self.stopping = "SIGTERM"
        elif self.deadline.must_save():
            self.stopping = f"checkpointing.checkpoint_must_save_by={self.config.checkpointing.checkpoint_must_save_by}"
        if self.checkpoints is None:
            return False
        settings = self.config.checkpointing
        last = self.state.step >= self.total_steps and settings.save_at_end
        return self.stopping is not None or last or self.state.step % settings.save_period == 0
