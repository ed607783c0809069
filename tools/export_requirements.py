"""Writes requirements/*.txt, the frozen resolution: versions and hashes, no addresses. `--check` only compares.

uv's lock file records where every file was downloaded from, so it is not committed; these exports are, and together
with `exclude-newer` in pyproject.toml they pin what anyone installs.
"""

import argparse
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[1]

# What each file installs: cpu.txt is what `uv sync` does, cuda.txt the environment of GPU workers.
EXPORTS = {"cpu": ("cpu", "dev"), "cuda": ("cuda", "dev")}


def export(groups: tuple[str, ...]) -> str:
    command = ["uv", "export", "--quiet", "--format", "requirements-txt", "--no-header", "--no-annotate"]
    command += ["--no-emit-project", "--no-default-groups", *(f"--group={group}" for group in groups)]
    text = subprocess.run(command, check=True, cwd=REPO, stdout=subprocess.PIPE, text=True).stdout
    if "://" in text:
        raise RuntimeError("uv export gave an address; requirements must hold versions and hashes only")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not up to date")
    check = parser.parse_args().check
    stale = []
    for name, groups in EXPORTS.items():
        path = REPO / "requirements" / f"{name}.txt"
        text = export(groups)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(REPO).as_posix())
    if stale:
        sys.exit(f"{', '.join(stale)} does not match pyproject.toml: run `python tools/export_requirements.py`")


if __name__ == "__main__":
    main()
