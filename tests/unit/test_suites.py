"""Recipes and their nightly scripts: complete, listed once, within the budget, and able to fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_rl.config import load_config
from tests.examples import ENTRY_POINTS, RECIPES, ROOT, algorithm_of, plan_of, root_of

SUITES = ROOT / "tests" / "test_suites"
SCRIPTS = sorted((SUITES / "llm").glob("*.sh"))
NIGHTLY_GPU_HOURS = 24
"""What one night may cost: half a node of 8 GPUs for six hours."""


def names(path: Path) -> str:
    return path.stem


def listed(suite: str) -> list[str]:
    lines = (SUITES / f"{suite}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def settings(script: Path) -> dict[str, int]:
    block = script.read_text().partition("# BEGIN CONFIG\n")[2].partition("# END CONFIG")[0]
    return {key: int(value) for key, value in re.findall(r"^(\w+)=(\d+)$", block, re.MULTILINE)}


def test_every_recipe_has_a_script_and_every_script_a_recipe() -> None:
    assert [script.stem for script in SCRIPTS] == [recipe.stem for recipe in RECIPES]


def test_every_script_is_in_exactly_one_list() -> None:
    both = listed("nightly") + listed("release")
    assert sorted(both) == sorted(script.relative_to(ROOT).as_posix() for script in SCRIPTS)


@pytest.mark.parametrize("recipe", RECIPES, ids=names)
def test_recipe_is_named_after_its_algorithm_and_has_a_plan(recipe: Path) -> None:
    assert algorithm_of(recipe) in ENTRY_POINTS
    assert "Length and files" in plan_of(recipe)(load_config(recipe, root=root_of(recipe)))


@pytest.mark.parametrize("recipe", RECIPES, ids=names)
def test_recipe_saves_and_logs_under_its_own_name(recipe: Path) -> None:
    config = load_config(recipe, root=root_of(recipe))
    assert config.checkpointing.checkpoint_dir == f"results/{recipe.stem}"
    assert config.logger.log_dir == f"logs/{recipe.stem}"


@pytest.mark.parametrize("script", SCRIPTS, ids=names)
def test_script_asks_for_the_devices_of_its_recipe(script: Path) -> None:
    recipe = next(recipe for recipe in RECIPES if recipe.stem == script.stem)
    cluster, wanted = load_config(recipe, root=root_of(recipe)).cluster, settings(script)
    assert wanted["NUM_NODES"] == cluster.num_nodes
    assert wanted["GPUS_PER_NODE"] == (0 if cluster.accelerator == "cpu" else cluster.gpus_per_node)


@pytest.mark.parametrize("recipe", RECIPES, ids=names)
def test_lora_recipes_use_a_lora_learning_rate(recipe: Path) -> None:
    megatron = load_config(recipe, root=root_of(recipe)).policy.megatron_cfg
    assert megatron.peft.enabled
    assert megatron.optimizer.lr >= 5e-5  # ten times the 5e-6 of full fine-tuning


def test_nightly_stays_within_its_budget() -> None:
    chosen = [settings(ROOT / name) for name in listed("nightly")]
    hours = sum(s["NUM_NODES"] * s["GPUS_PER_NODE"] * s["NUM_MINUTES"] / 60 for s in chosen)
    assert hours <= NIGHTLY_GPU_HOURS


STUB = """
import sys
from pathlib import Path
from torch.utils.tensorboard import SummaryWriter

given = dict(word.split("=", 1) for word in sys.argv if "=" in word)
if not sys.argv[1].startswith("examples/"):
    import runpy
    sys.argv = sys.argv[1:]
    sys.path.insert(0, ".")
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
last = min(int(given["sft.max_num_steps"]), {stop})
checkpoint = Path(given["checkpointing.checkpoint_dir"]) / f"step_{{last}}"
checkpoint.mkdir(parents=True, exist_ok=True)
with SummaryWriter(given["logger.log_dir"]) as writer:
    for step in range(last - 19, last + 1):
        writer.add_scalar("train/loss", 5 - 0.1 * step, step)
    writer.add_scalar("validation/val_loss", 5.0, 0)
    writer.add_scalar("validation/val_loss", 5 - 0.1 * last, last)
"""


@pytest.mark.parametrize(("stop", "code"), [(40, 0), (20, 1)], ids=["whole", "cut short"])
def test_script_passes_a_whole_run_and_fails_one_that_was_cut_short(tmp_path: Path, stop: int, code: int) -> None:
    """The trainer is a stub here that writes the metrics of a good run up to some step."""
    stub = tmp_path / "stub.py"
    stub.write_text(STUB.format(stop=stop))
    script = SUITES / "llm" / "sft-smollm2-135m-cpu-megatron-lora.sh"
    environment = {
        "PATH": "/usr/bin:/bin",
        "RESULTS_DIR": str(tmp_path / "results"),
        "NRL_RUN": f"{sys.executable} {stub}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "no step '40'" in done.stdout or code == 0
