"""The arithmetic of ranks and batches, and the words of --dry-run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_rl.config import ConfigError, MasterConfig, load_config
from nemo_rl.config.cli import parse_command_line
from nemo_rl.config.plan import GenerationLayout, ParallelLayout, batch_arithmetic, describe_plan, policy_world_size

DEFAULT = Path("default.yaml")
Load = Callable[..., MasterConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    (tmp_path / "empty.yaml").write_text("")
    return lambda *overrides: load_config(tmp_path / "empty.yaml", overrides)


def test_colocated_policy_and_engine_both_have_all_devices(load: Load) -> None:
    config = load(
        "cluster.gpus_per_node=8",
        "cluster.num_nodes=2",
        "policy.megatron_cfg.tensor_model_parallel_size=2",
        "policy.megatron_cfg.pipeline_model_parallel_size=2",
        "policy.megatron_cfg.context_parallel_size=2",
        "policy.generation.vllm_cfg.tensor_parallel_size=4",
    )
    assert ParallelLayout.from_config(config) == ParallelLayout(tp=2, pp=2, cp=2, dp=2, ep=1, world=16)
    assert GenerationLayout.from_config(config) == GenerationLayout(tp=4, pp=1, replicas=4, world=16)


@pytest.mark.parametrize(
    ("nodes", "resources", "policy", "engine"),
    [
        (1, "{gpus_per_node: 2}", 6, 2),
        (1, "{gpus_per_node: 4, num_nodes: 1}", 4, 4),
        (4, "{gpus_per_node: 8, num_nodes: 1}", 24, 8),
    ],
)
def test_generation_takes_a_part_of_one_node_or_whole_nodes(
    load: Load, nodes: int, resources: str, policy: int, engine: int
) -> None:
    config = load(
        "cluster.gpus_per_node=8",
        f"cluster.num_nodes={nodes}",
        "policy.generation.colocated.enabled=false",
        f"policy.generation.colocated.resources={resources}",
        "grpo.num_prompts_per_step=48",
        "policy.train_global_batch_size=768",
    )
    assert (policy_world_size(config), GenerationLayout.from_config(config).world) == (policy, engine)


def test_batch_arithmetic(load: Load) -> None:
    config = load(
        "cluster.gpus_per_node=2", "policy.train_global_batch_size=128", "policy.sequence_packing.enabled=false"
    )
    batch = batch_arithmetic(config)
    assert (batch.prompts, batch.generations, batch.rollouts, batch.optimizer_steps) == (32, 16, 512, 4)
    assert (batch.rollouts_per_rank, batch.micro_batches) == (64, 16)


def test_packing_leaves_the_number_of_micro_batches_open(load: Load) -> None:
    assert batch_arithmetic(load()).micro_batches is None


def test_plan_says_what_a_newcomer_wants_to_know(load: Load) -> None:
    text = describe_plan(
        load(
            "cluster.gpus_per_node=2",
            "cluster.accelerator=cuda",
            "policy.megatron_cfg.peft.enabled=true",
            "policy.megatron_cfg.peft.dim=16",
        )
    )
    for expected in (
        "32 prompts x 16 generations = 512 rollouts",
        "= 1 optimizer step per rollout batch",
        "alpha / dim = 32 / 16 = 2",
        "learning rate 5e-06",
        "1 node x 2 = 2 devices",
        "policy: 2 ranks = tensor 1 x pipeline 1 x context 1 x data 2",
        "2 vLLM replicas",
        "by CUDA IPC: base + scale x B A",
    ):
        assert expected in text


def test_command_line_takes_options_and_overrides_in_any_order() -> None:
    argv = ["a.b=1", "--config", "x.yaml", "~c", "--dry-run", "+d=[1, 2]"]
    assert parse_command_line(argv, DEFAULT) == (Path("x.yaml"), ["a.b=1", "~c", "+d=[1, 2]"], True)
    assert parse_command_line([], DEFAULT) == (DEFAULT, [], False)


def test_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"--confg is not an option"):
        parse_command_line(["--confg", "x.yaml"], DEFAULT)


def test_help_names_the_default_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse_command_line(["--help"], DEFAULT)
    assert "default.yaml" in capsys.readouterr().out
