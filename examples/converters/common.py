"""What the three converters share: their arguments and their last words."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_rl.config.schema import TrainingConfig
    from nemo_rl.policy.conversion import Conversion

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


def run(
    description: str, source: str, convert: "Callable[[argparse.Namespace], Conversion]", *, config: bool = False
) -> int:
    """Parse, convert, print what was written."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("output", type=Path, help="folder to write; must not exist or be empty")
    parser.add_argument("--model", help="base model: folder or Hub id (default: the one in the configuration)")
    parser.add_argument("--no-verify", action="store_true", help="do not compare log-probabilities afterwards")
    if config:
        parser.add_argument("--config", type=Path, required=True, help="configuration of the run to start from it")
        parser.add_argument("overrides", nargs="*", help="overrides of the configuration, a.b=1")
    from nemo_rl.errors import UserError

    arguments = parser.parse_args()
    try:
        done = convert(arguments)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    print(f"wrote {done.output}:")
    for name in done.files:
        print(f"  {name}  {(done.output / name).stat().st_size:,} bytes")
    if done.largest_difference is None:
        print("not verified")
    else:
        mean, largest = done.mean_difference, done.largest_difference
        print(f"verified: |difference| in log-probability is {mean:.2e} on average, at most {largest:.2e}")
    return 0


def base_model(arguments: argparse.Namespace, config: "TrainingConfig") -> str:
    """Folder or Hub id of the base, found sound."""
    from nemo_rl.algorithms.data_setup import load_model

    policy = config.policy
    if arguments.model is not None:
        tokenizer = policy.tokenizer.model_copy(update={"name": arguments.model})
        policy = policy.model_copy(update={"model_name": arguments.model, "tokenizer": tokenizer})
    return load_model(policy).path
