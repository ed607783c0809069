"""The typed schema: the only place that knows a default."""

from nemo_rl.config.schema.checkpointing import CheckpointingConfig
from nemo_rl.config.schema.cluster import ClusterConfig, WeightSyncConfig
from nemo_rl.config.schema.generation import GenerationConfig
from nemo_rl.config.schema.master import (
    EngineConfig,
    EvalMasterConfig,
    MasterConfig,
    SFTMasterConfig,
    TrainingConfig,
    WorkerConfig,
)
from nemo_rl.config.schema.megatron import PeftConfig
from nemo_rl.config.schema.policy import PolicyConfig, TrainedPolicyConfig
from nemo_rl.config.schema.root import RootConfig, default_tree

__all__ = [
    "CheckpointingConfig",
    "ClusterConfig",
    "EngineConfig",
    "EvalMasterConfig",
    "GenerationConfig",
    "MasterConfig",
    "PeftConfig",
    "PolicyConfig",
    "RootConfig",
    "SFTMasterConfig",
    "TrainedPolicyConfig",
    "TrainingConfig",
    "WeightSyncConfig",
    "WorkerConfig",
    "default_tree",
]
