"""Conversations to imitate: which messages, and which of their tokens the model is to learn."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_rl.data.errors import DataError
from nemo_rl.data.interfaces import Message
from nemo_rl.data.tokenizer import render_chat

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversation:
    """Messages of one dataset row, ending with an assistant's. `row_id` is the same in every run and epoch."""

    row_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Example:
    """A tokenised conversation. `loss_mask` is True on what an assistant says, its end token included."""

    row_id: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


class ConversationEncoder:
    """Renders conversations by the chat template and marks the assistant's tokens.

    Each answer follows the generation prompt and is tokenised by itself, so the model learns the very tokens it
    would have to sample in a rollout; what a template writes after the end token (a line break) is not learnt.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        *,
        add_bos: bool = False,
        add_eos: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.add_bos, self.add_eos = add_bos, add_eos
        self.template_kwargs = dict(template_kwargs or {})

    def encode(self, conversation: Conversation) -> Example:
        """One conversation, however long."""
        token_ids: list[int] = []
        mask: list[bool] = []
        written = ""
        last = max(index for index, message in enumerate(conversation.messages) if message["role"] == "assistant")
        for index, message in enumerate(conversation.messages):
            if message["role"] != "assistant":
                continue
            before = self._render(conversation.messages[:index], prompt=True)
            after = self._render(conversation.messages[: index + 1], prompt=False)
            if not before.startswith(written) or not after.startswith(before):
                raise DataError(
                    f"the chat template rewrites earlier turns of {conversation.row_id}, so its answers cannot be told "
                    "apart; set policy.tokenizer.chat_template to one that only appends"
                )
            context, answer = (
                self._tokens(before[len(written) :]),
                self._answer(after[len(before) :], last=index == last),
            )
            token_ids += context + answer
            end = self._learnt(answer)
            mask += [False] * len(context) + [True] * end + [False] * (len(answer) - end)
            written = after
        bos = self.tokenizer.bos_token_id
        if self.add_bos and bos is not None and token_ids[:1] != [bos]:
            token_ids, mask = [bos, *token_ids], [False, *mask]
        return Example(conversation.row_id, tuple(token_ids), tuple(mask))

    def encode_all(self, conversations: Iterable[Conversation]) -> list[Example]:
        """All examples of at most `max_length` tokens; the number left out is logged."""
        examples = [self.encode(conversation) for conversation in conversations]
        kept = [example for example in examples if len(example.token_ids) <= self.max_length]
        if not kept:
            shortest = min((len(example.token_ids) for example in examples), default=0)
            raise DataError(
                f"no conversation is left: all {len(examples)} are longer than "
                f"data.max_input_seq_length={self.max_length} tokens (the shortest has {shortest})"
            )
        if len(kept) < len(examples):
            dropped = len(examples) - len(kept)
            logger.warning(
                "left out %d of %d conversations longer than %d tokens", dropped, len(examples), self.max_length
            )
        return kept

    def _render(self, messages: Sequence[Message], *, prompt: bool) -> str:
        return render_chat(self.tokenizer, messages, prompt=prompt, kwargs=self.template_kwargs)

    def _tokens(self, text: str) -> list[int]:
        # the template writes the special tokens itself
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _answer(self, text: str, *, last: bool) -> list[int]:
        """Only the conversation ends in the tokenizer's own end token where the template ends turns with another."""
        tokens, eos = self._tokens(text), self.tokenizer.eos_token_id
        if not (last and self.add_eos) or eos is None or eos in tokens:
            return tokens
        return [*self._tokens(text.rstrip("\n")), eos]

    def _learnt(self, answer: Sequence[int]) -> int:
        """Number of leading tokens that the model would sample: up to the end token."""
        eos = self.tokenizer.eos_token_id
        return answer.index(eos) + 1 if eos in answer else len(answer)
