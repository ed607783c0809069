"""Shuffled batches: every row once an epoch, and N batches = k batches + resume + N - k batches."""

import pytest

from nemo_rl.data.errors import DataError
from nemo_rl.data.interfaces import Prompt
from nemo_rl.data.loader import PromptLoader

PROMPTS = [Prompt(f"row:{index}", (), (index,), "math", {}) for index in range(11)]


def loader(shuffle=True, seed=3, batch=3, prompts=PROMPTS):
    return PromptLoader(prompts, num_prompts_per_step=batch, shuffle=shuffle, seed=seed)


def ids(batch):
    return [prompt.prompt_id for prompt in batch]


def test_epoch_holds_no_row_twice_and_drops_the_incomplete_batch():
    it = loader()
    seen = [row for _ in range(it.steps_per_epoch) for row in ids(it.next_prompts())]
    assert it.epoch == 0 and len(seen) == len(set(seen)) == 9
    it.next_prompts()
    assert it.epoch == 1


def test_epochs_differ_and_seeds_differ():
    first, other = loader(), loader(seed=4)
    epochs = [[row for _ in range(3) for row in ids(first.next_prompts())] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != [row for _ in range(3) for row in ids(other.next_prompts())]


def test_unshuffled_is_in_order():
    it = loader(shuffle=False)
    assert ids(it.next_prompts()) == ["row:0", "row:1", "row:2"]


@pytest.mark.parametrize("stop", range(9))
def test_resume_is_exact_at_every_step_and_over_epoch_ends(stop):
    whole = loader()
    expected = [(ids(whole.next_prompts()), whole.epoch) for _ in range(9)]
    first = loader()
    for _ in range(stop):
        first.next_prompts()
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert [(ids(resumed.next_prompts()), resumed.epoch) for _ in range(9 - stop)] == expected[stop:]


@pytest.mark.parametrize("other", [loader(seed=4), loader(shuffle=False), loader(prompts=PROMPTS[:-1])])
def test_foreign_state_is_refused(other):
    with pytest.raises(DataError, match="the checkpoint's dataloader had"):
        loader().load_state_dict(other.state_dict())


def test_dataset_smaller_than_a_batch_says_so():
    with pytest.raises(DataError, match="has 11 prompts, fewer than the 12 of one step"):
        loader(batch=12)
