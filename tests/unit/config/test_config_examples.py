"""The configurations in examples/, the generated reference page, and the command that users start with."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from nemo_rl.config import load_config
from nemo_rl.config.cli import parse_command_line
from nemo_rl.config.inheritance import read_with_parents
from nemo_rl.config.keys import schema_keys
from nemo_rl.config.plan import ParallelLayout, describe_plan
from nemo_rl.config.schema import default_tree
from nemo_rl.config.tree import get, leaves, merge
from tests.examples import CONFIGS, ROOT, plan_of, root_of

BASES = [ROOT / "examples" / "configs" / name for name in ("grpo_math_1B.yaml", "sft.yaml", "eval.yaml")]
BASE = ROOT / "examples" / "configs" / "grpo_math_1B.yaml"
QWEN = ROOT / "examples/configs/recipes/llm/grpo-qwen3-8b-base-1n8g-megatron-lora.yaml"

NON_COLOCATED_ASYNC = (
    "grpo.max_num_steps=20",
    "grpo.num_prompts_per_step=8",
    "policy.train_global_batch_size=128",
    "policy.generation.colocated.enabled=false",
    "policy.generation.colocated.resources.gpus_per_node=4",
    "policy.generation.colocated.resources.num_nodes=1",
    "policy.generation.vllm_cfg.tensor_parallel_size=4",
    "cluster.gpus_per_node=8",
    "policy.megatron_cfg.tensor_model_parallel_size=4",
    "policy.generation.vllm_cfg.async_engine=true",
    "grpo.async_grpo.enabled=true",
    "loss_fn.use_importance_sampling_correction=true",
    "logger.log_dir=results/run/logs",
    "logger.wandb_enabled=True",
    "logger.wandb.project=lora-rl",
    "logger.wandb.name=run",
    "logger.monitor_gpus=True",
    "logger.tensorboard_enabled=False",
    "checkpointing.enabled=True",
    "checkpointing.checkpoint_dir=results/run",
)


def names(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", CONFIGS, ids=names)
def test_example_loads_and_has_a_plan(path: Path) -> None:
    assert "Model\n" in plan_of(path)(load_config(path, root=root_of(path)))


@pytest.mark.parametrize("path", [path for path in CONFIGS if path not in BASES], ids=names)
def test_example_holds_only_what_differs_from_its_parents(path: Path) -> None:
    own = yaml.safe_load(path.read_text())
    inherited = default_tree(root_of(path))
    defaults = own.pop("defaults")
    for parent in [defaults] if isinstance(defaults, str) else defaults:
        inherited = merge(inherited, read_with_parents(path.parent / parent).tree)
    absent = object()
    redundant = [key for key, value in leaves(own) if get(inherited, key, absent) == value]
    assert redundant == []


@pytest.mark.parametrize("path", CONFIGS, ids=names)
def test_header_says_hardware_time_and_reward(path: Path) -> None:
    header = path.read_text().partition("\n\n")[0].lower()
    assert all(word in header for word in ("hardware", "time", "reward"))


@pytest.mark.parametrize("path", BASES, ids=names)
def test_base_lists_every_key(path: Path) -> None:
    given, keys = read_with_parents(path).tree, schema_keys(root_of(path))
    optional = [key.path for key in keys.values() if key.optional]
    absent = object()
    missing = [key for key in keys if get(given, key, absent) is absent]
    assert [key for key in missing if not key.startswith(tuple(f"{path}." for path in optional))] == []


@pytest.mark.parametrize("path", BASES, ids=names)
def test_base_is_the_schemas_defaults_with_a_prompt_for_mathematics(path: Path) -> None:
    defaults = default_tree(root_of(path))
    differing = {key: value for key, value in leaves(read_with_parents(path).tree) if value != get(defaults, key)}
    prompt = "data.prompt_file" if path.stem == "eval" else "data.default.prompt_file"
    assert differing == {prompt: "examples/prompts/math.txt"}


def test_command_for_asynchronous_training_on_eight_gpus_passes() -> None:
    path, overrides, dry_run = parse_command_line(["--config", str(QWEN), *NON_COLOCATED_ASYNC, "--dry-run"], BASE)
    config = load_config(path, overrides)
    assert dry_run
    assert config.logger.wandb_enabled is True
    assert config.policy.megatron_cfg.peft.dim == 128
    assert ParallelLayout.from_config(config) == ParallelLayout(tp=4, pp=1, cp=1, dp=1, ep=1, world=4)
    assert "policy on 4 devices, engine on 4 others" in describe_plan(config)


def test_lora_learns_ten_times_faster_than_full_fine_tuning() -> None:
    full, lora = (
        load_config(BASE.with_name(f"grpo_math_1B_megatron{suffix}.yaml")).policy.megatron_cfg
        for suffix in ("", "_lora")
    )
    assert (full.peft.enabled, lora.peft.enabled) == (False, True)
    assert lora.optimizer.lr == pytest.approx(10 * full.optimizer.lr)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generator", ROOT / "tools" / "generate_config_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date() -> None:
    for path, text in generator().files().items():
        assert path.read_text() == text, f"run tools/generate_config_reference.py: {path.name} is stale"


@pytest.mark.parametrize("path", BASES, ids=names)
def test_every_key_is_documented(path: Path) -> None:
    keys = schema_keys(root_of(path))
    assert [name for name, key in keys.items() if not key.field.description] == []
