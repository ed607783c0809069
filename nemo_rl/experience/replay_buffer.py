"""Groups between generation and training: which may begin, which may be trained on, in what order.

Time is counted in weight versions: version v is what the engine has while step v + 1 is being made ready. A group's age
when it is trained on is the current version less the oldest version among its tokens.
"""

from collections import Counter
from dataclasses import dataclass

from nemo_rl.experience.interfaces import RolloutGroup


@dataclass
class Entry:
    """One admitted group. `version` is that of its admission, then of its oldest token; `group` is there when done."""

    version: int
    group: RolloutGroup | None = None


class ReplayBuffer:
    """Admits no more groups than training will take before they are older than `max_age`, and has training wait for a
    group that would be too old one step later. So nothing is thrown away for having taken long, which would starve
    long problems; `dropped` counts, by reason, what is thrown away after all.

    `depth` is how many steps generation works ahead. Old rollouts teach less, so it is 1 until training has to wait for
    groups, then one more, up to `max_age`; and one less when a whole further step lies ready.
    """

    def __init__(self, groups_per_step: int, max_age: int) -> None:
        self.groups_per_step, self.max_age = groups_per_step, max_age
        self.entries: dict[str, Entry] = {}
        self.dropped: Counter[str] = Counter()
        self.version: int | None = None
        self.taken = False
        self.depth = 1
        self.steps = 0

    def publish(self, version: int) -> None:
        """The engine has these weights from now on. The same version again changes nothing."""
        if version != self.version:
            self.version, self.taken = version, False

    @property
    def room(self) -> int:
        """Groups that may be admitted now: none before the first weights."""
        if self.version is None:
            return 0
        steps = self.depth + (0 if self.taken else 1)
        return max(0, steps * self.groups_per_step - len(self.entries))

    @property
    def in_flight(self) -> list[str]:
        return [group_id for group_id, entry in self.entries.items() if entry.group is None]

    @property
    def ready(self) -> int:
        return sum(entry.group is not None for entry in self.entries.values())

    def admit(self, group_id: str) -> None:
        if self.version is None:
            raise ValueError(f"group {group_id} cannot begin before the first weights")
        if group_id in self.entries:
            raise ValueError(f"group {group_id} was admitted already")
        self.entries[group_id] = Entry(self.version)

    def add(self, group: RolloutGroup) -> None:
        """An admitted group is done."""
        entry = self.entries[group.group_id]
        entry.group = group
        entry.version = min(rollout.oldest_version for rollout in group.rollouts)

    def drop(self, group_id: str, reason: str) -> None:
        del self.entries[group_id]
        self.dropped[reason] += 1

    def take(self) -> list[RolloutGroup] | None:
        """The groups of one step, oldest first and in order of admission among equals; None if it has to wait."""
        if self.version is None:
            return None
        for group_id in [
            i for i, e in self.entries.items() if e.group is not None and e.version < self.version - self.max_age
        ]:
            self.drop(group_id, "too_old")
        chosen = self._oldest_ready()
        if len(chosen) < self.groups_per_step or self._would_expire(chosen):
            return None
        self.taken, self.steps = True, self.steps + 1
        if self.ready >= 2 * self.groups_per_step:
            self.depth = max(1, self.depth - 1)
        return [group for group_id in chosen if (group := self.entries.pop(group_id).group) is not None]

    def waited_for(self) -> None:
        """Training came and had to wait. Says nothing when it was the first step, or when a straggler was the cause."""
        if self.steps and self.ready < self.groups_per_step:
            self.depth = min(self.depth + 1, self.max_age)

    def awaited(self) -> list[str]:
        """Groups under way that this step waits for, since later ones could not train on all of them any more."""
        return self._would_expire(self._oldest_ready()) if self.version is not None else []

    def _oldest_ready(self) -> list[str]:
        ready = [group_id for group_id, entry in self.entries.items() if entry.group is not None]
        return sorted(ready, key=lambda group_id: self.entries[group_id].version)[: self.groups_per_step]

    def _would_expire(self, chosen: list[str]) -> list[str]:
        """If `chosen` are trained on now: groups under way among those for which the following steps have no place in
        time. The i-th oldest of the rest comes to be trained on at version + 1 + i // groups_per_step."""
        assert self.version is not None
        rest = sorted((i for i in self.entries if i not in set(chosen)), key=lambda i: self.entries[i].version)
        late = [
            place
            for place, group_id in enumerate(rest)
            if self.entries[group_id].version + self.max_age < self.version + 1 + place // self.groups_per_step
        ]
        return [i for i in rest[: late[-1] + 1] if self.entries[i].group is None] if late else []


def age(group: RolloutGroup, version: int) -> int:
    """How many versions ago the oldest token of the group was sampled."""
    return version - min(rollout.oldest_version for rollout in group.rollouts)
