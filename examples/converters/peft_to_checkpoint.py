"""A PEFT adapter -> a checkpoint directory with step_0, verified by log-probabilities.

uv run examples/converters/peft_to_checkpoint.py adapter/ results/from_adapter --config examples/configs/CONFIG.yaml

The result can be evaluated and converted. To train from an adapter set checkpointing.adapter_path.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from common import base_model, run

if TYPE_CHECKING:
    from nemo_rl.policy.conversion import Conversion


def convert(arguments: argparse.Namespace) -> "Conversion":
    from nemo_rl.config.loader import load_config
    from nemo_rl.config.schema import MasterConfig
    from nemo_rl.policy.conversion import peft_to_checkpoint

    config: MasterConfig = load_config(arguments.config, arguments.overrides)
    model = base_model(arguments, config)
    return peft_to_checkpoint(arguments.source, arguments.output, model, config, check=not arguments.no_verify)


if __name__ == "__main__":
    sys.exit(run("PEFT adapter to checkpoint.", "folder of the adapter", convert, config=True))
