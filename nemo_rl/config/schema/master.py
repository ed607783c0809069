"""The root of the configuration."""

from typing import Any

from pydantic import model_validator

from nemo_rl.config.interpolation import resolve
from nemo_rl.config.rules import violations
from nemo_rl.config.schema.checkpointing import CheckpointingConfig
from nemo_rl.config.schema.cluster import ClusterConfig, DebugConfig, WeightSyncConfig
from nemo_rl.config.schema.data import DataConfig, EnvConfig
from nemo_rl.config.schema.grpo import GRPOConfig
from nemo_rl.config.schema.logger import LoggerConfig
from nemo_rl.config.schema.loss_fn import LossConfig
from nemo_rl.config.schema.policy import PolicyConfig
from nemo_rl.config.schema.section import Section, group, is_section
from nemo_rl.config.tree import Tree, merge


class MasterConfig(Section):
    """Everything a run needs to know. Made by `load_config`, or from a mapping by `model_validate`."""

    grpo: GRPOConfig = group(GRPOConfig, "The algorithm: rollouts, advantages, validation.")
    loss_fn: LossConfig = group(LossConfig, "The policy-gradient loss.")
    policy: PolicyConfig = group(PolicyConfig, "Model, trainer and rollout engine.")
    data: DataConfig = group(DataConfig, "Prompts.")
    env: EnvConfig = group(EnvConfig, "What scores the answers.")
    checkpointing: CheckpointingConfig = group(CheckpointingConfig, "Saving and resuming.")
    logger: LoggerConfig = group(LoggerConfig, "Tracking.")
    cluster: ClusterConfig = group(ClusterConfig, "Machines and devices.")
    weight_sync: WeightSyncConfig = group(WeightSyncConfig, "The way of weights from the policy to the engine.")
    debug: DebugConfig = group(DebugConfig, "Seams for looking at one half of a step.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Put what was given over the defaults and resolve every `${...}`, so that defaults may refer to other keys."""
        return resolve(merge(default_tree(), given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _obey_rules(self) -> "MasterConfig":
        if found := list(violations(self)):
            raise ValueError("\n".join(found))
        return self


def default_tree(section: type[Section] = MasterConfig) -> Tree:
    """Every key with its default, references unresolved."""
    tree: Tree = {}
    for name, info in section.model_fields.items():
        if is_section(info.annotation):
            tree[name] = default_tree(info.annotation)  # type: ignore[arg-type]
        else:
            tree[name] = info.get_default(call_default_factory=True)
    return tree
