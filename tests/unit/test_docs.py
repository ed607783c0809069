"""Every command in README.md, docs/ and the headers of examples parses, and names files that are there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from nemo_rl.config import load_config
from nemo_rl.config.cli import parse_command_line
from tests.examples import CONFIG_FOLDER, CONFIGS, ENTRY_POINTS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACEHOLDER = re.compile(r"FILE|FOLDER|PATH|HEAD|\$head|key=value|\.\.\.")


def texts() -> dict[str, str]:
    """Pages, the headers of example configurations and the docstrings of entry points, by name."""
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
    for config in CONFIGS:
        header = config.read_text().partition("\n\n")[0]
        found[config.name] = "\n".join(line.removeprefix("# ") for line in header.splitlines())
    for script in sorted((ROOT / "examples").glob("run_*.py")):
        found[script.name] = script.read_text().split('"""')[1]
    return found


def commands(text: str) -> list[str]:
    """Lines that begin with a command we know, backslashes joined, prompts and comments taken off."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line.strip().removeprefix("exec ") for line in joined.splitlines()]
    lines = [part for line in lines for part in line.split(" && ")]
    return [line for line in lines if re.match(r"(\w+=\S+ )?(uv run |tests/)\S+", line)]


ALL = [(name, command) for name, text in texts().items() for command in commands(text)]


def words(command: str) -> list[str]:
    return [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=\S*", word)]


def test_commands_are_found() -> None:
    assert sum("run_grpo.py" in command for _, command in ALL) >= 10
    assert any("run_sft.py" in command for _, command in ALL)
    assert any("run_eval.py" in command for _, command in ALL)


@pytest.mark.parametrize(("page", "command"), ALL)
def test_command_parses(page: str, command: str) -> None:
    # the column of explanations beside a command is set off by several spaces
    command = re.split(r"\s{3,}", command)[0]
    given = words(command)
    program = given[2] if given[:2] == ["uv", "run"] else given[0]
    if program.startswith(("tests/", "tools/", "examples/")):
        assert (ROOT / program).is_file(), f"{page}: {command}"
    entry = re.fullmatch(r"examples/run_(\w+)\.py", program)
    if entry is None:
        return
    root, plan, default = ENTRY_POINTS[entry[1]]
    arguments = drop_placeholders(words(command.partition(program)[2]))
    path, overrides, _ = parse_command_line(arguments, CONFIG_FOLDER / default)
    path = path if path.is_absolute() else ROOT / path
    assert plan(load_config(path, overrides, root)), f"{page}: {command}"


def drop_placeholders(arguments: list[str]) -> list[str]:
    """The command without what the reader is to fill in; with `--config FILE` the default is taken."""
    kept: list[str] = []
    for argument in arguments:
        if PLACEHOLDER.search(argument):
            if kept and kept[-1] == "--config":
                kept.pop()
            continue
        kept.append(argument)
    return kept


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_are_not_broken(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "page",
    # the page of compatibility names NeMo-RL's files
    [path for path in PAGES if path.stem != "nemo-rl-compatibility"],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_files_named_in_pages_exist(page: Path) -> None:
    named = re.findall(r"`((?:nemo_rl|tests|tools|examples)/[\w./-]+\.(?:py|sh|yaml|txt|md))`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    # the one tag in mkdocs.yml names a Python function
    text = re.sub(r"!!python/name:\S+", "", (ROOT / "mkdocs.yml").read_text())
    listed: list[str] = []

    def collect(item: object) -> None:
        if isinstance(item, str):
            listed.append(item)
        for child in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
            collect(child)

    collect(yaml.safe_load(text)["nav"])
    assert sorted(listed) == sorted(p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.parent != ROOT)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_measured_numbers_have_their_place(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.count("<!-- quickstart-numbers: begin -->") == text.count("<!-- quickstart-numbers: end -->") == 1
