"""Loads a tokenizer with its chat template, and checks that a model and a tokenizer fit together."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError, TemplateSyntaxError
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nemo_rl.data.errors import DataError
from nemo_rl.data.interfaces import Message
from nemo_rl.errors import first_line

PASSTHROUGH_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""For base models: the conversation's texts one after the other, nothing added."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin")


def load_tokenizer(
    name: str | Path, chat_template: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hub id or local folder, with a chat template and a padding token.

    `chat_template`: None or "default" keeps the tokenizer's own, "passthrough" joins the messages' texts, text with
    `{{` or `{%` is the template itself, anything else the path of its file.
    """
    if _is_local(name):
        _check_folder(Path(name))
        if not any((Path(name) / file).is_file() for file in TOKENIZER_FILES):
            raise DataError(f"model folder {name} has no tokenizer (none of {', '.join(TOKENIZER_FILES)})")
        for file in TOKENIZER_FILES:
            if file.endswith(".json") and (Path(name) / file).is_file():
                _json_object(Path(name) / file)
    # For a Qwen2 model AutoTokenizer overrules a generic class by Qwen2's own, which splits text its own way
    # whatever tokenizer.json says; a folder that names the generic class means its tokenizer.json.
    loader = PreTrainedTokenizerFast if _names_generic_class(Path(name)) else AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(str(name), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise DataError(f"tokenizer {str(name)!r} cannot be loaded: {first_line(error)}") from error
    template = _chat_template(chat_template)
    if template is not None:
        tokenizer.chat_template = template
    if not tokenizer.chat_template:
        raise DataError(
            f"tokenizer {str(name)!r} has no chat template, as is usual for base models; set "
            'policy.tokenizer.chat_template to a template, the path of a .jinja file, or "passthrough"'
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def validate_model_folder(
    model_name_or_path: str | Path, tokenizer: PreTrainedTokenizerBase, trust_remote_code: bool = False
) -> None:
    """Raises DataError unless the model has a config, weights, and an embedding for every token."""
    if _is_local(model_name_or_path):
        folder = Path(model_name_or_path)
        _check_folder(folder)
        if not any(file for pattern in WEIGHT_PATTERNS for file in folder.glob(pattern)):
            raise DataError(f"model folder {folder} has no weights ({' or '.join(WEIGHT_PATTERNS)})")
    try:
        config = AutoConfig.from_pretrained(str(model_name_or_path), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        problem = " ".join(str(error).split()) if isinstance(error, StrictDataclassError) else first_line(error)
        raise DataError(f"model {str(model_name_or_path)!r} cannot be loaded: {problem}") from error
    vocab_size = config.get_text_config().vocab_size
    if len(tokenizer) > vocab_size:
        raise DataError(
            f"the tokenizer has {len(tokenizer)} tokens but the model {str(model_name_or_path)!r} embeds only "
            f"{vocab_size}; use the model's own tokenizer (policy.tokenizer.name)"
        )


def _is_local(name: str | Path) -> bool:
    """A Hub id is "name" or "owner/name"; everything else, and everything that exists, is a folder."""
    text = str(name)
    return isinstance(name, Path) or Path(text).exists() or text.startswith((".", "/", "~")) or text.count("/") > 1


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"model folder {folder} does not exist")
    config = folder / "config.json"
    if not config.is_file():
        raise DataError(f"model folder {folder} has no config.json")
    _json_object(config)


def _json_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not UTF-8
        raise DataError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file} holds a {type(content).__name__} where a JSON object is expected")
    return content


def _names_generic_class(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    if not config.is_file() or not (folder / "tokenizer.json").is_file():
        return False
    return _json_object(config).get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")


def _chat_template(setting: str | None) -> str | None:
    if setting is None or setting == "default":
        return None
    if setting == "passthrough":
        return PASSTHROUGH_TEMPLATE
    if _is_template(setting):
        return setting
    if not Path(setting).is_file():
        raise DataError(
            f"policy.tokenizer.chat_template: chat template file {setting} does not exist, and as text it is no "
            "template, which has {{ or {%"
        )
    template = read_text(Path(setting), "policy.tokenizer.chat_template: chat template file")
    if not _is_template(template):
        raise DataError(f"policy.tokenizer.chat_template: {setting} holds no template, which has {{{{ or {{%")
    return template


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def read_text(path: Path, what: str) -> str:
    """The text of a user's file; DataError unless it is there and UTF-8."""
    if not path.is_file():
        raise DataError(f"{what} {path} does not exist")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{what} {path} is not UTF-8 text ({error}); save it as UTF-8") from error


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, prompt: bool, kwargs: Mapping[str, Any]
) -> str:
    """A conversation as text; with `prompt` the beginning of the next answer follows."""
    plain = [dict(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(plain, add_generation_prompt=prompt, tokenize=False, **kwargs)
    except TemplateSyntaxError as error:
        raise DataError(
            f"the chat template is not valid Jinja, line {error.lineno}: {error.message}; correct "
            "policy.tokenizer.chat_template"
        ) from error
    except (TemplateError, TypeError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise DataError(
            f"the chat template refuses a conversation of {roles or 'no messages'}: {first_line(error)}; change the "
            "data or policy.tokenizer.chat_template"
        ) from error
    assert isinstance(text, str)
    return text
