"""A run's checkpoint -> a PEFT adapter (loads in peft and in `vllm --enable-lora`), verified by log-probabilities.

uv run examples/converters/checkpoint_to_peft.py results/grpo/step_40 adapter/
"""

import argparse
import sys
from typing import TYPE_CHECKING

from common import base_model, run

if TYPE_CHECKING:
    from nemo_rl.policy.conversion import Conversion


def convert(arguments: argparse.Namespace) -> "Conversion":
    from nemo_rl.policy.conversion import checkpoint_to_peft
    from nemo_rl.policy.single import config_of_checkpoint

    model = base_model(arguments, config_of_checkpoint(arguments.source))
    return checkpoint_to_peft(arguments.source, arguments.output, model, check=not arguments.no_verify)


if __name__ == "__main__":
    sys.exit(run("Checkpoint to PEFT adapter.", "checkpoint, a folder step_N", convert))
