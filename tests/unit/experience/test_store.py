"""Rollouts go to disk and come back as they were."""

import pytest

from nemo_rl.data.interfaces import Prompt
from nemo_rl.experience.interfaces import Rollout
from nemo_rl.experience.store import RolloutFileError, read_groups, record
from nemo_rl.generation.interfaces import FinishReason, VersionSpan
from nemo_rl.utils.jsonio import write_jsonl


def saying(text):
    return Rollout(
        group_id="epoch0/p",
        sample_index=0,
        prompt=Prompt("p", ({"role": "user", "content": "?"},), (1, 2), "math", {"ground_truth": "4"}),
        token_ids=[1, 2, 3],
        loss_mask=[False, False, True],
        logprobs=[0.0, 0.0, -0.5],
        version_spans=[VersionSpan(2, 3, 7)],
        messages=[{"role": "assistant", "content": text}],
        reward=1.0,
        finish_reason=FinishReason.STOP,
        answer=text,
    )


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r", "\r\n", "\n"])
def test_text_with_any_line_separator_comes_back(tmp_path, separator):
    saved = saying(f"one{separator}two")
    write_jsonl(tmp_path / "step_1.jsonl", [record(saved)])
    (group,) = read_groups(tmp_path / "step_1.jsonl")
    assert group.rollouts == [saved]


def test_broken_line_is_named_by_its_place_in_the_file(tmp_path):
    path = tmp_path / "step_1.jsonl"
    write_jsonl(path, [record(saying("\u2028"))])
    path.write_text(path.read_text(encoding="utf-8") + "\n{broken\n", encoding="utf-8")
    with pytest.raises(RolloutFileError, match="line 3 is not a saved rollout"):
        read_groups(path)
