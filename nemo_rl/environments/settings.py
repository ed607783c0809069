"""What every environment can be told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EnvironmentSettings:
    """One environment.

    `num_workers` grader processes, each answer graded within `timeout_s` seconds of wall-clock time. `verifier`
    chooses between an environment's own graders. `entry_point` ("module:name" or "file.py:name") names a user's
    reward function or environment class and takes the place of a registered environment. `params` are free.
    """

    num_workers: int = 2
    timeout_s: float = 10.0
    verifier: str | None = None
    entry_point: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
