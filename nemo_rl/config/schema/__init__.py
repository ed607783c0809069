"""The typed schema: the only place that knows a default."""

from nemo_rl.config.schema.cluster import ClusterConfig, WeightSyncConfig
from nemo_rl.config.schema.generation import GenerationConfig
from nemo_rl.config.schema.master import MasterConfig, default_tree
from nemo_rl.config.schema.megatron import PeftConfig
from nemo_rl.config.schema.policy import PolicyConfig

__all__ = [
    "ClusterConfig",
    "GenerationConfig",
    "MasterConfig",
    "PeftConfig",
    "PolicyConfig",
    "WeightSyncConfig",
    "default_tree",
]
