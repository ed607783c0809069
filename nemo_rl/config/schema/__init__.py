"""The typed schema: the only place that knows a default."""

from nemo_rl.config.schema.master import MasterConfig, default_tree

__all__ = ["MasterConfig", "default_tree"]
