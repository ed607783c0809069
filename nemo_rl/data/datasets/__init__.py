"""Datasets by name: `load_records(settings)` and `load_splits(settings)`."""

from nemo_rl.data.datasets.registry import load_records, load_splits, register_dataset

__all__ = ["load_records", "load_splits", "register_dataset"]
