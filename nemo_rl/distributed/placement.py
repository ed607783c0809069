"""Where actors go: which bundle, which devices, which Python, which environment."""

import os
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@dataclass(frozen=True)
class WorkerEnvironment:
    """The interpreter that workers run in, and variables set before they import anything."""

    python: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Makes actors of one kind inside a placement group; actor i goes to bundle i, with that bundle's devices."""

    group: PlacementGroup
    environment: WorkerEnvironment
    gpus_per_actor: float
    cpus_per_actor: float
    variables: dict[str, str] = field(default_factory=dict)

    def actor(self, cls: type, bundle: int, name: str, *, visible_gpus: str | None = None, **options: Any) -> Any:
        """The Ray actor class bound to its place; call `.remote(...)` on it.

        `visible_gpus` hands an actor devices that others in the same bundle hold too (colocated engines).
        """
        variables = {**self.environment.variables, **self.variables, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        if visible_gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = visible_gpus
        return ray.remote(cls).options(
            num_cpus=self.cpus_per_actor,
            num_gpus=0 if visible_gpus is not None else self.gpus_per_actor,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle),
            runtime_env={"env_vars": variables, "py_executable": self.environment.python},
            max_restarts=0,
            **options,
        )


def quiet_libraries() -> dict[str, str]:
    """Settings of libraries that would otherwise talk, phone home or build caches in odd places."""
    return {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONWARNINGS": "ignore"}
