"""Turns what pydantic found into sentences about keys."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nemo_rl.config.inheritance import Given
from nemo_rl.config.keys import KnownKeys

_SPELLINGS = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
}
_HINTS = {
    "policy.megatron_cfg.peft.lora_dtype": (
        'adapters always have the precision of the policy; write null (the text "None" is not null)'
    ),
    "policy.megatron_cfg.enabled": "Megatron is the one trainer here",
    "policy.generation.backend": "vLLM is the one rollout engine here",
    "policy.generation.top_k": "null samples from all tokens",
    "policy.generation.temperature": "greedy rollouts of a group are all equal, so there is nothing to learn from",
    "checkpointing.checkpoint_must_save_by": 'days:hours:minutes:seconds in quotes, as in "00:03:45:00"',
    "checkpointing.metric_name": "write val:NAME or train:NAME, as in val:accuracy or train:reward",
}
_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, as in [a,b]",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "none_required": "null",
}


def sentences(error: ValidationError, given: Given, known: KnownKeys) -> list[str]:
    """One sentence per problem that the schema found."""
    found = error.errors(include_url=False)
    return [line for details in found if not _is_echo(details, found, given) for line in _lines(details, given, known)]


def problems(error: ValidationError) -> str:
    """What the schema found in a configuration that no file of the user gave, in one line."""
    found = error.errors(include_url=False)
    return "; ".join(f"{_path(details)}: {details['msg']}".removeprefix(": ") for details in found)


def _is_echo(details: ErrorDetails, found: list[ErrorDetails], given: Given) -> bool:
    """Whether a default that refers to a wrong key merely repeats that key's error."""
    if given.source_of(_path(details)) is not None:
        return False
    return any(
        other is not details and other["input"] == details["input"] and given.source_of(_path(other)) is not None
        for other in found
    )


def _path(details: ErrorDetails) -> str:
    return ".".join(str(part) for part in details["loc"])


def _lines(details: ErrorDetails, given: Given, known: KnownKeys) -> list[str]:
    if details["type"] == "value_error":
        lines = str(details["ctx"]["error"]).splitlines()
        return [f"{line}{origin(given, *_keys_in(line, given))}" for line in lines]
    path = _path(details)
    if details["type"] == "extra_forbidden":
        return [f"`{path}` is not a key of the configuration{known.suggestion(path)}{origin(given, path)}"]
    hint = _hint(path, details["input"], details["type"])
    return [f"{path} must be {_allowed(details)}, found {_shown(details['input'])}{hint}{origin(given, path)}"]


def _allowed(details: ErrorDetails) -> str:
    """What would have been right."""
    kind, limits = details["type"], details.get("ctx", {})
    if kind in _TYPES:
        return _TYPES[kind]
    if kind == "literal_error":
        return str(limits["expected"]).replace("'", "").replace("True", "true")
    for name, words in (("ge", "at least"), ("gt", "greater than"), ("le", "at most"), ("lt", "less than")):
        if name in limits:
            return f"{words} {limits[name]:g}"
    if kind == "string_pattern_mismatch":
        return f"text of the form {limits['pattern']}"
    if kind == "string_too_short":
        return "text that is not empty"
    return details["msg"].removeprefix("Input should be ")


def _hint(path: str, found: Any, kind: str) -> str:
    if path in _HINTS:
        return f"; {_HINTS[path]}"
    if isinstance(found, str):
        if found in _SPELLINGS and kind == "literal_error":
            return f"; write {_SPELLINGS[found]}"
        if kind in ("int_type", "float_type") and _is_number(found):
            return "; write it without quotes"
        if found in ("None", "none"):
            return "; for no value write null"
    if kind == "bool_type" and found in (0, 1):
        return f"; write {'true' if found else 'false'}"
    if kind == "string_type" and isinstance(found, int | float):
        return f'; put it in quotes, as in "{found}"'
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys_in(sentence: str, given: Given) -> list[str]:
    """The dotted keys that a rule's sentence names, as far as the user set them."""
    words = (word.strip("`,;:()").partition("=")[0] for word in sentence.split())
    return [word for word in words if word in given.sources]


def origin(given: Given, *paths: str) -> str:
    """ " (set in FILE)", if it is known where the keys, or keys below them, were set."""
    found = list(dict.fromkeys(source for path in paths if (source := given.source_of(path))))
    return f" (set in {', '.join(found)})" if found else ""
