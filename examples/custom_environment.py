"""A reward function of your own: short answers that contain the ground truth.

Use it with `+env.my_task.entry_point=examples/custom_environment.py:short_and_right data.train.env_name=my_task`.
"""

from collections.abc import Mapping
from typing import Any


def short_and_right(response: str, metadata: Mapping[str, Any]) -> float:
    """1.0 for the right answer in at most 100 characters, 0.5 for a longer one, 0.0 for a wrong one."""
    if str(metadata["ground_truth"]) not in response:
        return 0.0
    return 1.0 if len(response) <= 100 else 0.5
