"""Problem → prompt: prompt file, system prompt, chat template, tokens."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

from transformers import PreTrainedTokenizerBase

from nemo_rl.data.errors import DataError
from nemo_rl.data.interfaces import Message, Prompt
from nemo_rl.data.settings import Record
from nemo_rl.data.tokenizer import read_text, render_chat

logger = logging.getLogger(__name__)


def read_prompt_file(path: Path | None) -> str | None:
    """The text of a prompt file without its trailing newline; None for no file."""
    if path is None:
        return None
    return read_text(path, "prompt file").rstrip("\n")


def check_placeholder(template: str, source: Path | None) -> str:
    """The template itself, when exactly one '{}' says where the problem goes."""
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise DataError(f"prompt file {source} has a stray brace ({error}); write '{{{{' for a literal one") from error
    if fields != [""]:
        raise DataError(
            f"prompt file {source} needs exactly one '{{}}' where the problem goes, it has {len(fields)} fields; "
            "write '{{' and '}}' for literal braces, as in \\boxed{{}}"
        )
    return template


class PromptBuilder:
    """Renders records by the tokenizer's chat template and counts those that are too long."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_input_seq_length: int,
        prompt_file: Path | None = None,
        system_prompt_file: Path | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_input_seq_length = max_input_seq_length
        self.system_prompt = read_prompt_file(system_prompt_file)
        template = read_prompt_file(prompt_file)
        self.prompt_template = None if template is None else check_placeholder(template, prompt_file)
        self.chat_template_kwargs = dict(chat_template_kwargs or {})

    def messages(self, problem: str) -> tuple[Message, ...]:
        """The conversation that asks for one problem."""
        text = problem if self.prompt_template is None else self.prompt_template.format(problem)
        system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        return (*system, {"role": "user", "content": text})

    def prompt(self, record: Record) -> Prompt:
        """One record, rendered and tokenised, however long."""
        messages = self.messages(record.problem)
        rendered = render_chat(self.tokenizer, messages, prompt=True, kwargs=self.chat_template_kwargs)
        # the template writes the special tokens itself
        token_ids = tuple(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])
        return Prompt(record.row_id, messages, token_ids, record.env_name, record.metadata)

    def build(self, records: Iterable[Record]) -> list[Prompt]:
        """All prompts of at most `max_input_seq_length` tokens; the number left out is logged."""
        prompts = [self.prompt(record) for record in records]
        kept = [prompt for prompt in prompts if len(prompt.token_ids) <= self.max_input_seq_length]
        dropped = len(prompts) - len(kept)
        if not kept:
            raise DataError(
                f"no prompt is left: all {len(prompts)} are longer than data.max_input_seq_length="
                f"{self.max_input_seq_length} tokens (the shortest has "
                f"{min((len(prompt.token_ids) for prompt in prompts), default=0)})"
            )
        if dropped:
            logger.warning(
                "left out %d of %d prompts longer than %d tokens", dropped, len(prompts), self.max_input_seq_length
            )
        return kept
