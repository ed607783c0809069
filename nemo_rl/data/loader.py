"""Batches of prompts in a shuffled order that resumes exactly."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nemo_rl.data.errors import DataError


def check_enough(prompts: int, num_prompts_per_step: int) -> None:
    """DataError unless the prompts of a dataset fill one step."""
    if prompts < num_prompts_per_step:
        raise DataError(
            f"the dataset has {prompts} prompts, fewer than the {num_prompts_per_step} of one step; lower "
            "grpo.num_prompts_per_step or use a larger dataset"
        )


class PromptLoader[Item]:
    """Endless batches of `num_prompts_per_step` prompts, or conversations. An epoch's incomplete last batch is dropped.

    The order of an epoch is a function of (seed, epoch), so the position alone is the whole state. A generic
    dataloader would checkpoint generator states and worker queues for the same result.
    """

    def __init__(self, prompts: Sequence[Item], num_prompts_per_step: int, shuffle: bool, seed: int) -> None:
        check_enough(len(prompts), num_prompts_per_step)
        self.prompts = prompts
        self.num_prompts_per_step = num_prompts_per_step
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._cursor = 0
        self._order = self._order_of(0)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.prompts) // self.num_prompts_per_step

    def next_prompts(self) -> list[Item]:
        """The next batch. `epoch` is the epoch that this batch belongs to."""
        if self._cursor + self.num_prompts_per_step > len(self.prompts):
            self.epoch += 1
            self._cursor = 0
            self._order = self._order_of(self.epoch)
        chosen = self._order[self._cursor : self._cursor + self.num_prompts_per_step]
        self._cursor += self.num_prompts_per_step
        return [self.prompts[index] for index in chosen]

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "cursor": self._cursor,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_prompts": len(self.prompts),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """DataError unless `state` was taken with the same dataset in the same order."""
        here = self.state_dict()
        for key in ("seed", "shuffle", "num_prompts"):
            if state[key] != here[key]:
                raise DataError(f"the checkpoint's dataloader had {key}={state[key]}, this run has {key}={here[key]}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken; refuses the state of another dataset or order."""
        self.check_state(state)
        self.epoch, self._cursor = state["epoch"], state["cursor"]
        self._order = self._order_of(self.epoch)

    def _order_of(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.prompts)))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.prompts)).tolist()
