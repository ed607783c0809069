"""What can be wrong with a user's data, model folder or tokenizer, said in one sentence."""

import difflib
from collections.abc import Iterable

from nemo_rl.errors import UserError


class DataError(UserError, ValueError):
    """A dataset, prompt file, tokenizer or model folder cannot be used; the message is one sentence for a person."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for a near miss, else the list of what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names) or 'none'}"
