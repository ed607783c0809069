"""Loads a tokenizer with its chat template, and checks that a model and a tokenizer fit together."""

import json
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nemo_rl.data.errors import DataError

PASSTHROUGH_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""For base models: the conversation's texts one after the other, nothing added."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin")


def load_tokenizer(
    name: str | Path, chat_template: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hub id or local folder, with a chat template and a padding token.

    `chat_template`: None or "default" keeps the tokenizer's own, "passthrough" joins the messages' texts, a path of
    a .jinja file is read, anything else is the template itself.
    """
    if _is_local(name):
        _check_folder(Path(name))
        if not any((Path(name) / file).is_file() for file in TOKENIZER_FILES):
            raise DataError(f"model folder {name} has no tokenizer (none of {', '.join(TOKENIZER_FILES)})")
    # For a Qwen2 model AutoTokenizer overrules a generic class by Qwen2's own, which splits text its own way
    # whatever tokenizer.json says; a folder that names the generic class means its tokenizer.json.
    loader = PreTrainedTokenizerFast if _names_generic_class(Path(name)) else AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(str(name), trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise DataError(f"tokenizer {str(name)!r} cannot be loaded: {_first_line(error)}") from error
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
    except (OSError, ValueError) as error:
        raise DataError(f"model {str(model_name_or_path)!r} cannot be loaded: {_first_line(error)}") from error
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
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{config} is not valid JSON: {error}") from error


def _names_generic_class(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    if not config.is_file() or not (folder / "tokenizer.json").is_file():
        return False
    named = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class")
    return named in ("TokenizersBackend", "PreTrainedTokenizerFast")


def _chat_template(setting: str | None) -> str | None:
    if setting is None or setting == "default":
        return None
    if setting == "passthrough":
        return PASSTHROUGH_TEMPLATE
    if setting.endswith(".jinja"):
        if not Path(setting).is_file():
            raise DataError(f"chat template file {setting} does not exist")
        return Path(setting).read_text(encoding="utf-8")
    return setting


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
