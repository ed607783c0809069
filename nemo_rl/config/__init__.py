"""YAML inheritance, overrides in Hydra's grammar, and the typed schema. Imports no torch, ray or vllm."""

from nemo_rl.config.errors import ConfigError
from nemo_rl.config.loader import load_config, resolved_yaml
from nemo_rl.config.schema import MasterConfig

__all__ = ["ConfigError", "MasterConfig", "load_config", "resolved_yaml"]
