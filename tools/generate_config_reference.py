"""Writes docs/configuration*.md and the base files in examples/configs/ from the schema; `--check` only compares."""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from nemo_rl.config.keys import Key, keys_of, schema_keys
from nemo_rl.config.schema import EvalMasterConfig, MasterConfig, RootConfig, SFTMasterConfig, default_tree
from nemo_rl.config.schema.data import CustomEnvConfig

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120


@dataclass(frozen=True)
class Page:
    """The reference page and the base file of one entry point.

    `task` is what makes the defaults a run on mathematics: the schema itself knows no file of examples/.
    """

    root: type[RootConfig]
    reference: str
    base: str
    script: str
    header: str
    task: dict[str, str]


PAGES = (
    Page(
        MasterConfig,
        "docs/configuration.md",
        "examples/configs/grpo_math_1B.yaml",
        "run_grpo.py",
        "Task: OpenMathInstruct-2 on 1 GPU, full fine-tuning. Hardware, time and reward: see "
        "grpo_math_1B_megatron.yaml.",
        {"data.default.prompt_file": "examples/prompts/math.txt"},
    ),
    Page(
        SFTMasterConfig,
        "docs/configuration-sft.md",
        "examples/configs/sft.yaml",
        "run_sft.py",
        "Task: GSM8K's solutions on 1 GPU, all parameters. Hardware: 1 GPU with 80 GB or more. Reward: none. Time and "
        "validation loss: not measured yet.",
        {"data.default.prompt_file": "examples/prompts/math.txt"},
    ),
    Page(
        EvalMasterConfig,
        "docs/configuration-eval.md",
        "examples/configs/eval.yaml",
        "run_eval.py",
        "Task: GSM8K's test set. Hardware: 1 GPU with 24 GB or more. Time and reward: not measured yet.",
        {"data.prompt_file": "examples/prompts/math.txt"},
    ),
)

INTRO = """# Configuration of {script}

A run is described by one YAML file and by changes on the command line:

    uv run examples/{script} --config FILE key=value ... --dry-run

`--dry-run` prints the resolved configuration and the plan (ranks, devices, batch arithmetic) and exits.

**Files.** `defaults: other.yaml` (or a list, the later on top) inherits from files relative to it. Mappings merge,
everything else replaces; a mapping with `_override_: true` replaces too. `${{a.b}}` takes the value of another key,
`${{.b}}` that of a neighbour; `${{mul:a,b}}`, `${{div:a,b}}`, `${{add:a,b}}` and `${{max:a,b}}` calculate.
A file holds only what differs from what it inherits; defaults are known to the schema alone.

**Command line**, in Hydra's grammar: `a.b=1` changes a key, `+a.b=1` adds one, `++a.b=1` does either, `~a.b` puts it
back to its default. Lists are `a=[x,y]`; quote text with special characters twice: `'a="x, y"'`.

**Errors.** An unknown key, a wrong type or an illegal combination ends the run before anything starts, with one
sentence for each. Nothing is converted: `"8"` is not a number, and the text `None` is not `null`.

This page is generated from the schema by `tools/generate_config_reference.py`.
"""


def type_words(annotation: Any) -> str:
    """`int or null`, `tis, icepop`, `list of text`."""
    if get_origin(annotation) is Literal:
        return ", ".join(scalar(value) for value in get_args(annotation))
    names = {int: "integer", float: "number", bool: "true, false", str: "text", type(None): "null", Any: "anything"}
    if annotation in names:
        return names[annotation]
    parts = get_args(annotation)
    if get_origin(annotation) is list:
        return f"list of {type_words(parts[0])}"
    if get_origin(annotation) is dict:
        return "mapping" if parts[1] is Any else f"mapping to {type_words(parts[1])}"
    return " or ".join(type_words(part) for part in parts)


def limit_words(key: Key) -> str:
    """`>= 1`, from the field's constraints."""
    signs = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
    return ", ".join(
        f"{sign} {getattr(limit, name):g}"
        for limit in key.field.metadata
        for name, sign in signs
        if hasattr(limit, name)
    )


def scalar(value: Any) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]


def _rows(keys: list[Key]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key in keys:
        kind = " ".join(filter(None, (type_words(key.field.annotation), limit_words(key))))
        cells = (f"`{key.path}`", kind, f"`{scalar(key.default)}`", key.field.description or "")
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference(page: Page) -> str:
    """The text of the page that describes every key."""
    keys = list(schema_keys(page.root).values())
    lines = [INTRO.format(script=page.script)]
    sections = [key for key in keys if key.section is not None]
    for section in sections:
        own = [key for key in keys if key.section is None and key.path.rpartition(".")[0] == section.path]
        lines += [
            f"{'#' * (2 + min(section.path.count('.'), 2))} {section.path}",
            "",
            section.field.description or "",
            "",
        ]
        lines += ["May be null, which is the default.", ""] if section.optional else []
        lines += [*_rows(own), ""] if own else []
    if "env" in schema_keys(page.root):
        lines += _own_environment()
    lines += ["## Keys of NeMo-RL that are refused", ""]
    lines += ["Accepted, and ignored, when they ask for nothing (null, false, `enabled: false`, or as listed).", ""]
    lines += ["| key | also accepted | why it is not built |", "|---|---|---|"]
    others = {"grpo", "sft", "loss_fn"} - set(default_tree(page.root))
    for path, entry in page.root.refused.items():
        if path.partition(".")[0] in others:
            continue
        accepted = "any value" if entry.any_value else ", ".join(f"`{scalar(value)}`" for value in entry.off)
        lines.append(f"| `{path}` | {accepted} | {entry.reason} |")
    return "\n".join(lines) + "\n"


def _own_environment() -> list[str]:
    lines = ["### env.NAME", "", "An environment of one's own; NAME is what `data.*.env_name` calls it.", ""]
    return [*lines, *_rows(list(keys_of(CustomEnvConfig, "env.NAME."))), ""]


def base_yaml(page: Page) -> str:
    """The text of the base configuration: every key with its default and its description."""
    name = page.base.rpartition("/")[2]
    lines = [
        f"# The base of all configurations of {page.script}: each key with its default and meaning. Generated from the "
        "schema by",
        f"# tools/generate_config_reference.py; inherit it (`defaults: {name}`), do not copy it.",
        *(f"# {line}" for line in textwrap.wrap(page.header, WIDTH - 2)),
    ]
    keys = schema_keys(page.root)
    for key in keys.values():
        depth = key.path.count(".")
        if any(parent.optional and key.path.startswith(f"{parent.path}.") for parent in keys.values()):
            continue
        indent, name = "  " * depth, key.path.rpartition(".")[2]
        value = "" if key.section and not key.optional else f" {scalar(page.task.get(key.path, key.default))}"
        text, comment = f"{indent}{name}:{value}", key.field.description or ""
        lines += [""] if depth == 0 else []
        if len(text) + len(comment) + 4 <= WIDTH:
            lines.append(f"{text}  # {comment}")
        else:
            lines += [f"{indent}# {line}" for line in textwrap.wrap(comment, WIDTH - len(indent) - 2)] + [text]
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Everything that is generated, by its place."""
    return {ROOT / page.reference: reference(page) for page in PAGES} | {
        ROOT / page.base: base_yaml(page) for page in PAGES
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in files().items() if _differs(path, text)]
    for path, text in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


def _differs(path: Path, text: str) -> bool:
    return not path.is_file() or path.read_text(encoding="utf-8") != text


if __name__ == "__main__":
    sys.exit(main())
