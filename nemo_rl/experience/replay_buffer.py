"""Groups between generation and training: which may begin, which may be trained on, in what order.

Time is counted in weight versions: version v is what the engine has while step v + 1 is being made ready. A group's age
when it is trained on is the current version less the oldest version among its tokens.
"""

from collections import Counter
from dataclasses import dataclass

from nemo_rl.experience.interfaces import RolloutGroup


@dataclass
class Entry:
    """One admitted group: `version` is that of its admission, then of its oldest token; `group` comes when it is done."""

    version: int
    group: RolloutGroup | None = None


class ReplayBuffer:
    """Admits no more groups than training will take before they are older than `max_age`, and has training wait for a
    group that would be too old one step later. So nothing is thrown away for having taken long, which would starve
    long problems; `dropped` counts, by reason, what is thrown away after all.
    """

    def __init__(self, groups_per_step: int, max_age: int) -> None:
        self.groups_per_step, self.max_age = groups_per_step, max_age
        self.entries: dict[str, Entry] = {}
        self.dropped: Counter[str] = Counter()
        self.version: int | None = None
        self.taken = False

    def publish(self, version: int) -> None:
        """The engine has these weights from now on. The same version again changes nothing."""
        if version != self.version:
            self.version, self.taken = version, False

    @property
    def room(self) -> int:
        """Groups that may be admitted now: none before the first weights."""
        if self.version is None:
            return 0
        steps = self.max_age + (0 if self.taken else 1)
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

    def expiring(self) -> list[str]:
        """Groups under way that this step must wait for, since the next one could not train on them any more."""
        oldest = self._oldest_allowed()
        return [i for i, entry in self.entries.items() if entry.group is None and entry.version <= oldest]

    def take(self) -> list[RolloutGroup] | None:
        """The groups of one step, oldest first and in order of admission among equals; None if it has to wait."""
        if self.version is None:
            return None
        oldest = self._oldest_allowed()
        for group_id in [i for i, e in self.entries.items() if e.group is not None and e.version < oldest]:
            self.drop(group_id, "too_old")
        done = [(entry.version, i, entry.group) for i, entry in enumerate(self.entries.values()) if entry.group is not None]
        if self.expiring() or len(done) < self.groups_per_step:
            return None
        chosen = [group for _, _, group in sorted(done, key=lambda item: item[:2])[: self.groups_per_step]]
        for group in chosen:
            del self.entries[group.group_id]
        self.taken = True
        return chosen

    def _oldest_allowed(self) -> int:
        assert self.version is not None
        return self.version - self.max_age


def age(group: RolloutGroup, version: int) -> int:
    """How many versions ago the oldest token of the group was sampled."""
    return version - min(rollout.oldest_version for rollout in group.rollouts)
