"""The error of everything that is wrong with a configuration, and the search for what the user meant."""

import difflib
from collections.abc import Iterable

from nemo_rl.errors import UserError


class ConfigError(UserError, ValueError):
    """What is wrong, one sentence per problem: the key, what was found, what is allowed, the likely fix."""


def suggestion(key: str, valid: Iterable[str]) -> str:
    """ "; did you mean `x.y`?" for the valid key nearest to a wrong one, or nothing if none is near.

    A key in the wrong section has the right last part, and a typo has the right parents: both are looked for.
    """
    candidates = sorted(set(valid))
    parent, _, last = key.rpartition(".")
    siblings = [c for c in candidates if c.rpartition(".")[0] == parent]
    near = [f"{parent}.{n}" if parent else n for n in _close(last, [c.rpartition(".")[2] for c in siblings], 0.6)]
    same_name = [c for c in candidates if c.rpartition(".")[2] == last]
    found = near or difflib.get_close_matches(key, same_name, 1, 0.0) or _close(key, candidates, 0.6)
    if not found:
        found = [
            c
            for c in candidates
            if c.rpartition(".")[2] in _close(last, [c.rpartition(".")[2] for c in candidates], 0.75)
        ]
    return f"; did you mean `{found[0]}`?" if found else ""


def _close(word: str, among: list[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(word, among, 1, cutoff)
