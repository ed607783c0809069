"""Datasets as conversations: a column of messages, or problem and answer columns as one exchange."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_rl.data.conversations import Conversation
from nemo_rl.data.datasets.registry import load_records
from nemo_rl.data.datasets.response import FORMATS, TableFormat, plain_table
from nemo_rl.data.datasets.tables import Row, column, looks_like_file, read_hub, read_local
from nemo_rl.data.errors import DataError
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.data.settings import DatasetSettings

_BY_HUB_ID = {table.hub_id: name for name, table in FORMATS.items()}
_ROLES = ("system", "user", "assistant", "tool")
_SOLUTIONS = {"OpenMathInstruct-2": "generated_solution"}
"""Where the column that is graded is not the one to imitate."""


def load_conversations(settings: DatasetSettings, chat_key: str, prompts: PromptBuilder) -> list[Conversation]:
    """All conversations of a dataset; at least one. `prompts` turns a bare problem into messages."""
    name = settings.dataset_name
    known = _BY_HUB_ID.get(name, name)
    if known in FORMATS:
        rows, source, table = _known(known, settings)
    elif name == "ResponseDataset" or looks_like_file(name):
        path = settings.data_path if name == "ResponseDataset" else Path(name)
        if path is None:
            raise DataError(f"dataset ResponseDataset needs {settings.key}.data_path, the path of its file")
        rows, source, table = read_local(settings, path, settings.split), path.stem, plain_table(path.stem)
    elif name.count("/") == 1:
        rows, source, table = read_hub(settings, name, settings.subset, settings.split), name, plain_table(name)
    else:
        records = load_records(settings)
        if any("ground_truth" not in record.metadata for record in records):
            raise DataError(f"{settings} has no answers to imitate")
        return [_exchange(r.row_id, r.problem, str(r.metadata["ground_truth"]), prompts) for r in records]
    found = list(_conversations(rows, source, table, chat_key, prompts, settings))
    if not found:
        raise DataError(f"{settings} has no rows")
    return found


def _known(name: str, settings: DatasetSettings) -> tuple[Iterator[Row], str, TableFormat]:
    table, split = FORMATS[name], settings.split or FORMATS[name].split
    if settings.data_path is not None:
        rows = read_local(settings, settings.data_path, split)
    else:
        rows = read_hub(settings, table.hub_id, settings.subset or table.subset, split)
    return rows, f"{name}-{split}", TableFormat(table.hub_id, table.input_key, _SOLUTIONS.get(name, table.output_key))


def _conversations(
    rows: Iterator[Row],
    source: str,
    table: TableFormat,
    chat_key: str,
    prompts: PromptBuilder,
    settings: DatasetSettings,
) -> Iterator[Conversation]:
    for index, row in enumerate(rows):
        if settings.size is not None and index >= settings.size:
            return
        row_id = f"{source}:{index}"
        if chat_key in row:
            yield Conversation(row_id, _checked(row[chat_key], f"{settings}, row {index}", chat_key, prompts))
        else:
            problem = column(row, settings.input_key or table.input_key, settings, "input_key")
            answer = column(row, settings.output_key or table.output_key, settings, "output_key")
            yield _exchange(row_id, str(problem), str(answer), prompts)


def _exchange(row_id: str, problem: str, answer: str, prompts: PromptBuilder) -> Conversation:
    return Conversation(row_id, (*prompts.messages(problem), {"role": "assistant", "content": answer}))


def _checked(messages: Any, where: str, chat_key: str, prompts: PromptBuilder) -> tuple[Mapping[str, str], ...]:
    """The messages up to the last assistant's; DataError where they are none."""
    if not isinstance(messages, list) or not all(
        isinstance(m, Mapping) and m.get("role") in _ROLES and isinstance(m.get("content"), str) for m in messages
    ):
        raise DataError(
            f"{where}: column {chat_key!r} must be a list of messages with `role` ({', '.join(_ROLES)}) and "
            "`content`, a text"
        )
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        raise DataError(f"{where}: column {chat_key!r} has no assistant message, so there is nothing to learn")
    kept = [{"role": m["role"], "content": m["content"]} for m in messages[: answers[-1] + 1]]
    if prompts.system_prompt is not None and kept[0]["role"] != "system":
        kept = [{"role": "system", "content": prompts.system_prompt}, *kept]
    if kept[0]["role"] == "assistant":
        raise DataError(
            f"{where}: column {chat_key!r} begins with an assistant message; put the user's before it, or set a "
            "system_prompt_file"
        )
    return tuple(kept)
