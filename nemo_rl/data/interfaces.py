"""What a dataset hands to the rest of the house: prompts, already tokenised."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""


@dataclass(frozen=True)
class Prompt:
    """One problem, rendered by the chat template and tokenised.

    `prompt_id` names the dataset row ("gsm8k-train:17") and is the same in every epoch; `metadata` is what the
    environment `env_name` needs to grade an answer, e.g. {"ground_truth": "72"}.
    """

    prompt_id: str
    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    env_name: str
    metadata: Mapping[str, Any]
