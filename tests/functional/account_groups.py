"""Accounts for every group that a run trained on: none twice, none left out on the way.

Usage: python tests/functional/account_groups.py LOG_DIR

Walks the dataset in the order of the run's seed and compares with the saved rollouts of all experiments under LOG_DIR.
Groups may still be missing among the last ones: those were under way, or in the buffer, when the run ended.
"""

import argparse
import json
import sys
from pathlib import Path

from nemo_rl.algorithms.data_setup import load_data
from nemo_rl.config.loader import load_config
from nemo_rl.data.loader import PromptLoader
from nemo_rl.experience.sources import group_id_of


def trained_groups(log_dir: Path) -> list[tuple[int, list[str]]]:
    """Group ids of each step, once each; of a step that was done twice (after a resume) the later files count."""
    steps: dict[int, list[str]] = {}
    for path in sorted(log_dir.glob("exp_*/rollouts/step_*.jsonl"), key=lambda path: path.stat().st_mtime):
        groups = [json.loads(line)["group_id"] for line in path.read_text().splitlines()]
        steps[int(path.stem.removeprefix("step_"))] = list(dict.fromkeys(groups))
    return sorted(steps.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log_dir", type=Path)
    log_dir = parser.parse_args().log_dir
    config = load_config(sorted(log_dir.glob("exp_*/config.yaml"))[-1], [])
    trained = [group for _, groups in trained_groups(log_dir) for group in groups]
    twice = sorted({group for group in trained if trained.count(group) > 1})
    loader = PromptLoader(load_data(config).train, 1, config.data.shuffle, config.grpo.seed)
    under_way = config.grpo.num_prompts_per_step * (config.grpo.async_grpo.max_trajectory_age_steps + 1)
    walk = []
    while len(walk) < len(trained) + under_way:
        (prompt,) = loader.next_prompts()
        walk.append(group_id_of(loader.epoch, prompt.prompt_id))
    unknown = sorted(set(trained) - set(walk))
    last = max(walk.index(group) for group in trained if group not in unknown)
    missing = [group for group in walk[: last + 1] if group not in set(trained)]
    print(f"{len(trained)} groups trained on; twice: {twice}; not of this walk: {unknown}; passed over: {missing}")
    if twice or unknown or len(missing) > under_way:
        sys.exit("groups are not accounted for")


if __name__ == "__main__":
    main()
