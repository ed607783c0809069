"""Tokens of what an environment says, to be appended to a conversation whose own tokens stay as they were sampled."""

from collections.abc import Sequence
from typing import Any

from nemo_rl.data.interfaces import Message


class TemplateError(ValueError):
    """The chat template rewrites earlier turns, so a conversation cannot be continued token by token."""


def observation_tokens(
    tokenizer: Any, messages: Sequence[Message], observations: Sequence[Message], last_token: int
) -> list[int]:
    """Tokens that follow the model's latest turn: end of that turn, the observations, start of the next turn.

    The text is what the chat template adds when the observations are appended. If the model already sampled the end
    token (`last_token`), it is not repeated.
    """

    def render(conversation: Sequence[Message], generation: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            [dict(m) for m in conversation], tokenize=False, add_generation_prompt=generation
        )
        return text

    before, after = render(messages, False), render([*messages, *observations], True)
    if not after.startswith(before):
        raise TemplateError(
            "the chat template changes earlier turns when the conversation grows, which multi-turn rollouts cannot "
            "follow; give a template that only appends (policy.tokenizer.chat_template)"
        )
    end_of_turn = before[before.rindex(messages[-1]["content"]) + len(messages[-1]["content"]) :]
    if last_token == tokenizer.eos_token_id:
        end_of_turn = end_of_turn.removeprefix(tokenizer.eos_token)
    tokens: list[int] = tokenizer.encode(end_of_turn + after[len(before) :], add_special_tokens=False)
    return tokens
