"""The files of one checkpoint directory: its manifest, and the checks that tell a whole one from a broken one.

A checkpoint is a directory step_N with whatever the policy wrote, `config.yaml`, `training_info.json` and, written
last, `MANIFEST.json`: the format marker, the step, and every file with its size (and SHA-256 where it is small).
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_rl.errors import UserError
from nemo_rl.utils.jsonio import write_json

FORMAT = "nemo_rl-checkpoint-v1"
MANIFEST_FILE = "MANIFEST.json"
INFO_FILE = "training_info.json"
CONFIG_FILE = "config.yaml"

# Larger files are tensors, whose loss by truncation the size shows; hashing terabytes would stall the run.
_HASHED_UP_TO_BYTES = 64 * 2**20


class CheckpointError(UserError):
    """A checkpoint that cannot be used, with the reason in one sentence."""


def write_manifest(directory: Path, step: int) -> None:
    """Lists every file that is there now, and forces all of them to disk before and the manifest after."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in files:
        _fsync(path)
    entries = [_describe(path, directory) for path in files]
    write_json(directory / MANIFEST_FILE, {"format": FORMAT, "step": step, "files": entries})
    for folder in [path for path in directory.rglob("*") if path.is_dir()] + [directory]:
        _fsync(folder)


def verify(path: Path | str) -> None:
    """Raises CheckpointError unless `path` is a whole checkpoint of our format."""
    path = Path(path)
    for entry in read_manifest(path)["files"]:
        file = path / entry["path"]
        if not file.is_file():
            raise CheckpointError(f"{path} is not whole: {entry['path']} is missing")
        size = file.stat().st_size
        if size != entry["size"]:
            raise CheckpointError(f"{path} is not whole: {entry['path']} has {size} bytes instead of {entry['size']}")
        if "sha256" in entry and _sha256(file) != entry["sha256"]:
            raise CheckpointError(f"{path} was changed: {entry['path']} does not have the content that was saved")


def read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory")
    manifest = path / MANIFEST_FILE
    if not manifest.is_file():
        raise CheckpointError(
            f"{path} is not a checkpoint of nemo_rl, or was never finished: it has no {MANIFEST_FILE}"
        )
    content = _read_json(manifest)
    marker = content.get("format")
    if marker != FORMAT:
        raise CheckpointError(f"{path} has format {marker!r}, but this version reads {FORMAT!r}")
    return content


def megatron_checkpoint(path: Path | str) -> Path:
    """The folder of one iteration of a distributed Megatron checkpoint: `path` itself, or the newest below it.

    Raises CheckpointError if there is none.
    """
    path = Path(path)
    if (path / "metadata.json").is_file():
        return path
    iterations = sorted(found.parent for found in path.glob("iter_*/metadata.json"))
    tracker = path / "latest_checkpointed_iteration.txt"
    if tracker.is_file() and (named := tracker.read_text().strip()).isdigit():
        iterations = [folder for folder in iterations if folder.name == f"iter_{int(named):07d}"]
    if not iterations:
        raise CheckpointError(
            f"{path} is no distributed Megatron checkpoint: it has neither metadata.json nor iter_*/metadata.json"
        )
    return iterations[-1]


def load_info(path: Path | str) -> dict[str, Any]:
    """The training_info that was given to `CheckpointManager.finalize`, and its step."""
    path = Path(path)
    read_manifest(path)
    if not (path / INFO_FILE).is_file():
        raise CheckpointError(f"{path} is not whole: {INFO_FILE} is missing")
    return _read_json(path / INFO_FILE)


def check_compatible(info: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises CheckpointError naming every key of `expected` that info["compatibility"] has otherwise.

    Those are the settings without which the saved tensors mean something else: model name, LoRA rank and targets.
    """
    saved = info.get("compatibility", {})
    differences = [
        f"{key} was {saved[key]!r} and is now {value!r}" if key in saved else f"{key} (now {value!r}) was not recorded"
        for key, value in json.loads(json.dumps(dict(expected))).items()  # tuples compare as the lists they became
        if key not in saved or saved[key] != value
    ]
    if differences:
        raise CheckpointError(
            f"the checkpoint of step {info.get('step')} does not fit this run: {'; '.join(differences)}; resume "
            "with the settings that it was saved with, or start afresh in another checkpointing.checkpoint_dir"
        )


def sync_directory(directory: Path) -> None:
    """Makes a rename inside `directory` survive a power cut."""
    _fsync(directory)


def _describe(path: Path, root: Path) -> dict[str, Any]:
    size = path.stat().st_size
    entry: dict[str, Any] = {"path": path.relative_to(root).as_posix(), "size": size}
    if size <= _HASHED_UP_TO_BYTES:
        entry["sha256"] = _sha256(path)
    return entry


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.parent} is not whole: {path.name} is not readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__} where an object is expected")
    return content


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
