"""Rollouts on disk, one JSON line each: for people to read, and for training from without an engine."""

import json
import math
import re
from pathlib import Path
from typing import Any

from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import GradeStatus
from nemo_rl.errors import UserError
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.generation.interfaces import FinishReason, VersionSpan

_STEP_FILE = re.compile(r"step_(\d+)\.jsonl")


class RolloutFileError(UserError, ValueError):
    """A file of rollouts that cannot be trained from."""


def record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as plain values, nothing lost; the readable part comes first."""
    return {
        "group_id": rollout.group_id,
        "sample_index": rollout.sample_index,
        "reward": rollout.reward,
        "grade_status": rollout.grade_status.value,
        "finish_reason": rollout.finish_reason.value,
        "answer": rollout.answer,
        "turns": rollout.turns,
        "messages": [dict(message) for message in rollout.messages],
        "prompt": {
            "prompt_id": rollout.prompt.prompt_id,
            "env_name": rollout.prompt.env_name,
            "metadata": dict(rollout.prompt.metadata),
            "messages": [dict(message) for message in rollout.prompt.messages],
            "token_ids": list(rollout.prompt.token_ids),
        },
        "version_spans": [[s.start, s.end, s.version] for s in rollout.version_spans],
        "token_ids": rollout.token_ids,
        "loss_mask": [int(sampled) for sampled in rollout.loss_mask],
        "logprobs": rollout.logprobs,
    }


def rollout_of(record: dict[str, Any]) -> Rollout:
    """The inverse of `record`."""
    prompt = record["prompt"]
    return Rollout(
        group_id=record["group_id"],
        sample_index=record["sample_index"],
        prompt=Prompt(
            prompt["prompt_id"],
            tuple(prompt["messages"]),
            tuple(prompt["token_ids"]),
            prompt["env_name"],
            prompt["metadata"],
        ),
        token_ids=record["token_ids"],
        loss_mask=[bool(sampled) for sampled in record["loss_mask"]],
        logprobs=record["logprobs"],
        version_spans=[VersionSpan(*span) for span in record["version_spans"]],
        messages=record["messages"],
        reward=math.nan if record["reward"] is None else record["reward"],
        finish_reason=FinishReason(record["finish_reason"]),
        grade_status=GradeStatus(record["grade_status"]),
        answer=record["answer"],
        turns=record["turns"],
    )


def step_files(folder: Path) -> list[Path]:
    """step_1.jsonl, step_2.jsonl, ... in order of their numbers; RolloutFileError if there is none."""
    found = [(int(match[1]), path) for path in folder.glob("*.jsonl") if (match := _STEP_FILE.fullmatch(path.name))]
    if not found:
        raise RolloutFileError(
            f"debug.train_from_rollouts={folder} holds no step_N.jsonl; give a run's rollouts folder"
        )
    return [path for _, path in sorted(found)]


def read_groups(path: Path) -> list[RolloutGroup]:
    """The groups of one file, in the order in which they first appear."""
    groups: dict[str, list[Rollout]] = {}
    # not splitlines(), which splits at U+2028 too, a character that JSON may hold as it is
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line:
            continue
        try:
            rollout = rollout_of(json.loads(line))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise RolloutFileError(
                f"{path}, line {number} is not a saved rollout ({type(error).__name__}: {error})"
            ) from error
        groups.setdefault(rollout.group_id, []).append(rollout)
    return [RolloutGroup(group_id, rollouts) for group_id, rollouts in groups.items()]
