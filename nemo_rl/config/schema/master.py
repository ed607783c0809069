"""The roots of the configuration, one for each entry point in examples/."""

from collections.abc import Mapping
from typing import ClassVar

from nemo_rl.config.layout import policy_world_size
from nemo_rl.config.rules import EVAL_RULES, GRPO_RULES, SFT_RULES
from nemo_rl.config.schema.checkpointing import CheckpointingConfig, SFTCheckpointingConfig
from nemo_rl.config.schema.cluster import ClusterConfig, DebugConfig, WeightSyncConfig
from nemo_rl.config.schema.data import DataConfig, EnvConfig
from nemo_rl.config.schema.eval import EvalConfig, EvalDataConfig
from nemo_rl.config.schema.grpo import GRPOConfig
from nemo_rl.config.schema.logger import LoggerConfig
from nemo_rl.config.schema.loss_fn import LossConfig
from nemo_rl.config.schema.policy import PolicyConfig
from nemo_rl.config.schema.refused import REFUSED, SFT_REFUSED, Refused
from nemo_rl.config.schema.root import RootConfig, Rule
from nemo_rl.config.schema.section import group
from nemo_rl.config.schema.sft import SFTConfig, SFTDataConfig, SFTPolicyConfig


class MasterConfig(RootConfig):
    """Everything a GRPO run needs to know."""

    rules: ClassVar[tuple[Rule, ...]] = GRPO_RULES

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

    @property
    def seed(self) -> int:
        return self.grpo.seed

    @property
    def temperature(self) -> float:
        """What the trainer's log-probabilities are taken at."""
        return self.policy.generation.temperature

    @property
    def policy_devices(self) -> int:
        return policy_world_size(self)

    @property
    def has_engine(self) -> bool:
        return self.debug.train_from_rollouts is None

    @property
    def engine_works_meanwhile(self) -> bool:
        return self.grpo.async_grpo.enabled


class SFTMasterConfig(RootConfig):
    """Everything a supervised fine-tuning run needs to know."""

    rules: ClassVar[tuple[Rule, ...]] = SFT_RULES
    refused: ClassVar[Mapping[str, Refused]] = REFUSED | SFT_REFUSED

    sft: SFTConfig = group(SFTConfig, "Length, validation and seed.")
    policy: SFTPolicyConfig = group(SFTPolicyConfig, "Model and trainer.")
    data: SFTDataConfig = group(SFTDataConfig, "Conversations.")
    checkpointing: SFTCheckpointingConfig = group(SFTCheckpointingConfig, "Saving and resuming.")
    logger: LoggerConfig = group(LoggerConfig, "Tracking.")
    cluster: ClusterConfig = group(ClusterConfig, "Machines and devices.")

    @property
    def seed(self) -> int:
        return self.sft.seed

    @property
    def temperature(self) -> float:
        return 1.0

    @property
    def policy_devices(self) -> int:
        return self.cluster.gpus_per_node * self.cluster.num_nodes


class EvalMasterConfig(RootConfig):
    """Everything an evaluation needs to know. The trainer exists only to merge adapters into weights."""

    rules: ClassVar[tuple[Rule, ...]] = EVAL_RULES

    eval: EvalConfig = group(EvalConfig, "What is evaluated, and how often each problem is tried.")
    policy: PolicyConfig = group(PolicyConfig, "Model and rollout engine; the trainer, where adapters are merged.")
    data: EvalDataConfig = group(EvalDataConfig, "Problems.")
    env: EnvConfig = group(EnvConfig, "What scores the answers.")
    cluster: ClusterConfig = group(ClusterConfig, "Machines and devices.")
    weight_sync: WeightSyncConfig = group(WeightSyncConfig, "The way of weights from the policy to the engine.")

    @property
    def seed(self) -> int:
        return self.eval.seed

    @property
    def temperature(self) -> float:
        return self.policy.generation.temperature

    @property
    def policy_devices(self) -> int:
        return policy_world_size(self)

    @property
    def has_engine(self) -> bool:
        return True

    @property
    def checkpointing(self) -> CheckpointingConfig:
        """Nothing is saved, and the trainer starts from no PEFT folder: such adapters are merged without it."""
        base = self.eval.pretrained_checkpoint
        return CheckpointingConfig.model_validate({"enabled": False, "pretrained_checkpoint": base})


TrainingConfig = MasterConfig | SFTMasterConfig
"""What a training run is made from."""
WorkerConfig = MasterConfig | SFTMasterConfig | EvalMasterConfig
"""What training ranks are made from."""
EngineConfig = MasterConfig | EvalMasterConfig
"""What rollout engines are made from."""
