"""The command line of every entry point: `--config FILE`, `--dry-run`, and overrides."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_rl.config.errors import ConfigError
from nemo_rl.config.loader import load_config, resolved_yaml
from nemo_rl.config.schema import RootConfig
from nemo_rl.errors import UserError

_EPILOG = """overrides:
  grpo.max_num_steps=20            change a key            logger.wandb.name='"a name"'   text with spaces
  +policy.generation.vllm_kwargs.x=1   add a key           data.train=null                nothing
  ++env.mine.num_workers=2         add or change           'policy.generation.stop_strings=["</a>"]'   a list
  ~policy.tokenizer.chat_template  back to the default

Every key is described in docs/configuration.md."""


def entry_point[Root: RootConfig](
    argv: Sequence[str],
    default_config: Path,
    root: type[Root],
    describe_plan: Callable[[Root], str],
    run: Callable[[Root], int],
) -> int:
    """Load the configuration and run it, or with --dry-run say what would run. The process's exit code.

    Errors of the user are a sentence each and exit code 2, everything else keeps its traceback.
    """
    try:
        path, overrides, dry_run = parse_command_line(argv, default_config)
        config = load_config(path, overrides, root)
        if not dry_run:
            return run(config)
    except UserError as error:
        sys.stderr.write(f"{'configuration error' if isinstance(error, ConfigError) else 'error'}: {error}\n")
        return 2
    sys.stdout.write(f"{resolved_yaml(config)}\n{describe_plan(config)}\n")
    return 0


def parse_command_line(argv: Sequence[str], default_config: Path) -> tuple[Path, list[str], bool]:
    """(configuration file, overrides, dry run?). Whatever is not an option is an override, in the order given."""
    parser = argparse.ArgumentParser(
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, default=default_config, help=f"YAML file (default: {default_config})")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and the plan, then exit"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the configuration")
    options, overrides = parser.parse_known_intermixed_args(argv)
    for text in overrides:
        if text.startswith("-"):
            raise ConfigError(f"{text} is not an option; options are --config FILE, --dry-run and --help")
    return options.config, options.overrides, options.dry_run
