"""Tokens of what an environment says, to be appended to a conversation whose own tokens stay as they were sampled."""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_rl.data.interfaces import Message

_MARK = "@@nemo-rl-here@@"
"""Stands for a message's text: nothing that a template would strip, split or escape, and nobody says it."""


class TemplateError(ValueError):
    """Where the model's turn ends cannot be found in what the chat template prints."""


def observation_tokens(
    tokenizer: Any,
    messages: Sequence[Message],
    observations: Sequence[Message],
    token_ids: Sequence[int],
    template_kwargs: Mapping[str, Any],
) -> list[int]:
    """Tokens that follow the model's latest turn: end of that turn, the observations, start of the next turn.

    They are what the chat template prints behind that turn. How it prints the turn itself and those before it does
    not matter, since their tokens are in `token_ids`, which may end with some of what would follow: whatever token or
    text ended the turn was sampled, and is not repeated.
    """

    def render(said: Sequence[Message]) -> str:
        conversation = [*messages[:-1], {**messages[-1], "content": _MARK}, *said]
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in conversation], tokenize=False, add_generation_prompt=True, **template_kwargs
        )
        return text

    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return tokens

    rendered = render(observations).split(_MARK)
    if len(rendered) != 2:
        raise TemplateError(
            f"the chat template prints what an assistant says {len(rendered) - 1} times, but multi-turn rollouts go on "
            "behind the one place where it stands; give another template (policy.tokenizer.chat_template)"
        )
    tokens = encode(rendered[1])
    # An observation may begin as the turn ended, so only what the template puts between them can be there already.
    between = encode(render([{**message, "content": _MARK} for message in observations]).split(_MARK)[1])
    said = next((n for n in range(len(between), 0, -1) if list(token_ids[-n:]) == between[:n] == tokens[:n]), 0)
    return tokens[said:]
