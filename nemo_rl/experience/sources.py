"""Where the groups of a step come from."""

from pathlib import Path
from typing import Any

from nemo_rl.data.loader import PromptLoader
from nemo_rl.experience.episodes import RolloutSettings
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.rollouts import RolloutRunner
from nemo_rl.experience.store import read_groups, step_files


class GeneratedRollouts:
    """Plays the step's prompts now, with the weights that the engine has."""

    def __init__(self, loader: PromptLoader, runner: RolloutRunner, settings: RolloutSettings, samples: int) -> None:
        self.loader, self.runner, self.settings, self.samples = loader, runner, settings, samples

    def next_groups(self, version: int) -> list[RolloutGroup]:
        prompts = self.loader.next_prompts()
        ids = [group_id_of(self.loader.epoch, prompt.prompt_id) for prompt in prompts]
        return self.runner.run(prompts, ids, self.samples, self.settings)

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])

    def metrics(self) -> dict[str, float]:
        return {}


class SavedRollouts:
    """Reads step_N.jsonl files one after the other."""

    def __init__(self, folder: Path) -> None:
        self.files = step_files(folder)
        self.position = 0

    def next_groups(self, version: int) -> list[RolloutGroup]:
        groups = read_groups(self.files[self.position])
        self.position += 1
        return groups

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]

    def metrics(self) -> dict[str, float]:
        return {}


def group_id_of(epoch: int, prompt_id: str) -> str:
    """A prompt comes once per epoch, so this is unique in a run and the same however the run is interrupted."""
    return f"epoch{epoch}/{prompt_id}"
