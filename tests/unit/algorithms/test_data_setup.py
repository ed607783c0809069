"""What a run starts from is checked before any worker is."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import Gemma3Config

from nemo_rl.algorithms.data_setup import (
    check_heads,
    check_layout,
    check_starting_points,
    dataset_settings,
    load_model,
    longest_prompt,
    overridden_config,
)
from nemo_rl.config.loader import load_config
from nemo_rl.config.schema import CheckpointingConfig, PeftConfig
from nemo_rl.data.errors import DataError
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.utils.tiny_model import make_tiny_model

CONFIG = Path(__file__).parents[3] / "examples/configs/grpo_tiny_cpu.yaml"


@pytest.mark.parametrize(("key", "complaint"), [
    ("adapter_path", "has no adapter_config.json"), ("pretrained_checkpoint", "neither metadata.json nor iter_"),
])  # fmt: skip
def test_starting_point_that_is_not_there_is_named(tmp_path: Path, key: str, complaint: str) -> None:
    with pytest.raises(DataError, match=f"checkpointing.{key}.*{complaint}"):
        check_starting_points(CheckpointingConfig.model_validate({key: str(tmp_path)}), PeftConfig())


def test_starting_points_that_are_there_pass(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    (tmp_path / "adapter_model.safetensors").touch()
    (tmp_path / "iter_0000001").mkdir()
    (tmp_path / "iter_0000001" / "metadata.json").write_text("{}")
    settings = CheckpointingConfig(adapter_path=str(tmp_path), pretrained_checkpoint=str(tmp_path))
    check_starting_points(settings, PeftConfig(dim=4, alpha=8.0))
    with pytest.raises(DataError, match=r"checkpointing.adapter_path: .* has lora_alpha=8, but .*peft.alpha=32.0"):
        check_starting_points(settings, PeftConfig(dim=4))


@pytest.mark.parametrize(("overrides", "environment"), [
    ([], None), (["data.default.env_name=math"], "math"),
    (["data.default.env_name=math", "data.train.env_name=exact_match"], "exact_match"),
])  # fmt: skip
def test_environment_of_a_dataset_is_its_own_key_else_the_default(
    overrides: list[str], environment: str | None
) -> None:
    config = load_config(CONFIG, overrides)
    assert dataset_settings(config, "data.train", config.data.train, "train", 0.0).env_name == environment


def test_a_prompt_leaves_room_for_one_token() -> None:
    assert longest_prompt(load_config(CONFIG, [])) == 63  # of policy.max_total_sequence_length=64
    assert longest_prompt(load_config(CONFIG, ["data.max_input_seq_length=40"])) == 40


@pytest.mark.parametrize(("experts", "tp", "sequence_parallel", "refused"), [
    (8, 2, False, True), (8, 2, True, False), (8, 1, False, False), (None, 2, False, False),
])  # fmt: skip
def test_experts_under_tensor_parallelism_need_sequence_parallelism(
    experts: int | None, tp: int, sequence_parallel: bool, refused: bool
) -> None:
    layout = [f"policy.megatron_cfg.tensor_model_parallel_size={tp}", "cluster.gpus_per_node=2"]
    layout.append(f"policy.megatron_cfg.sequence_parallel={sequence_parallel}")
    policy = load_config(CONFIG, layout).policy
    model = SimpleNamespace(num_experts=experts, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=4)
    with pytest.raises(DataError, match="sequence_parallel must be true") if refused else nullcontext():
        check_layout(policy, model)


@pytest.mark.parametrize(("devices", "settings", "words"), [
    (3, ["tensor_model_parallel_size=3"], "size=3 does not divide.*4 attention heads and 2 key-value"),
    (4, ["tensor_model_parallel_size=4"], None),
    (3, ["pipeline_model_parallel_size=3"], "pipeline_model_parallel_size=3 does not divide the 4 layers"),
    (3, ["pipeline_model_parallel_size=3", "num_layers_in_first_pipeline_stage=2"], None),
    (2, ["tensor_model_parallel_size=2", "peft.dim=1"], "peft.dim=1 must be a multiple of .*_size=2"),
])  # fmt: skip
def test_a_model_that_cannot_be_cut_so_is_named(devices: int, settings: list[str], words: str | None) -> None:
    overrides = [f"policy.megatron_cfg.{setting}" for setting in settings]
    policy = load_config(CONFIG, [*overrides, f"cluster.gpus_per_node={devices}"]).policy
    model = SimpleNamespace(num_experts=None, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=4)
    with pytest.raises(DataError, match=words) if words else nullcontext():
        check_layout(policy, model)


@pytest.mark.parametrize(("kind", "model", "refused"), [
    ("cpu", {"head_dim": 16}, True), ("cpu", {"head_dim": 128}, False), ("cuda", {"head_dim": 16}, False),
    ("cpu", {"hidden_size": 64, "num_attention_heads": 4}, True),
    ("cpu", {"hidden_size": 576, "num_attention_heads": 9}, False),
])  # fmt: skip
def test_heads_that_vllm_cannot_serve_on_a_cpu_are_named_before_a_worker_starts(
    kind: str, model: dict[str, int], refused: bool
) -> None:
    config = load_config(CONFIG)
    with pytest.raises(DataError, match="no heads of size 16") if refused else nullcontext():
        check_heads(config, SimpleNamespace(**model), Accelerator(kind, None))


def test_training_from_saved_rollouts_needs_no_engine_and_so_takes_any_heads() -> None:
    config = load_config(CONFIG, ["debug.train_from_rollouts=rollouts"])
    check_heads(config, SimpleNamespace(head_dim=16), Accelerator("cpu", None))


def test_a_tiny_models_name_stands_for_its_tokenizer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_RL_CACHE", str(tmp_path / "cache"))
    make_tiny_model(tmp_path / "model", num_hidden_layers=1)
    names = [f"policy.model_name={tmp_path / 'model'}", "policy.tokenizer.name=tiny-random-llama"]
    model = load_model(load_config(CONFIG, names).policy)
    assert model.path == str(tmp_path / "model")
    assert model.tokenizer.name_or_path == str(tmp_path / "cache" / "tiny-random-llama")


@pytest.mark.parametrize(("override", "complaint"), [
    ("rope_theta: 5.0", "has no 'rope_theta'; the base of rotary positions is in rope_parameters"),
    ("num_layers: 2", "the config of .* has no 'num_layers'"),
])  # fmt: skip
def test_an_override_that_the_trainer_would_drop_is_refused(tmp_path: Path, override: str, complaint: str) -> None:
    make_tiny_model(tmp_path, num_hidden_layers=1)
    names = [f"policy.model_name={tmp_path}", f"policy.hf_config_overrides={{{override}}}"]
    with pytest.raises(DataError, match=complaint):
        load_model(load_config(CONFIG, names).policy)


@pytest.mark.parametrize(("override", "refused"), [("rms_norm_eps: 0.5", False), ("rope_parameters: {}", True)])
def test_a_mapping_within_a_part_of_the_config_is_refused(tmp_path: Path, override: str, refused: bool) -> None:
    """transformers replaces it, vLLM merges it."""
    Gemma3Config().save_pretrained(tmp_path)
    policy = load_config(CONFIG, [f"policy.hf_config_overrides={{text_config: {{{override}}}}}"]).policy
    with pytest.raises(DataError, match="text_config may hold no mappings") if refused else nullcontext():
        assert overridden_config(policy, str(tmp_path)).get_text_config().rms_norm_eps == 0.5
