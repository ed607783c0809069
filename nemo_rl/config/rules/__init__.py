"""Rules between keys. Each is a function that yields one sentence per illegal combination it finds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.rules import algorithm, batches, engine, lora, parallelism, running

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig

_RULES = (*parallelism.RULES, *batches.RULES, *algorithm.RULES, *lora.RULES, *engine.RULES, *running.RULES)


def violations(config: "MasterConfig") -> Iterator[str]:
    """Every rule that the configuration breaks, in one sentence each."""
    for rule in _RULES:
        yield from rule(config)
