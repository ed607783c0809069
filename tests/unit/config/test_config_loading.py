"""Inheritance, references, the override grammar, and what a loaded configuration is."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_rl.config import ConfigError, MasterConfig, load_config, resolved_yaml


def write(folder: Path, **files: str) -> Path:
    """Write NAME.yaml for each argument; returns the last one's path."""
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.write_text(text)
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return write(tmp_path, empty="")


def test_later_parents_lie_on_top_of_earlier_ones_and_the_file_on_top_of_all(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        grand="grpo: {seed: 1, max_num_steps: 1, max_num_epochs: 1, val_period: 1}",
        a="defaults: grand.yaml\ngrpo: {max_num_steps: 2, max_num_epochs: 2, val_period: 2}",
        b="grpo: {max_num_epochs: 3, val_period: 3}",
        child="defaults: [a.yaml, b.yaml]\ngrpo: {val_period: 4}",
    )
    grpo = load_config(path).grpo
    assert (grpo.seed, grpo.max_num_steps, grpo.max_num_epochs, grpo.val_period) == (1, 2, 3, 4)


def test_parents_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, base="grpo: {seed: 7}")
    write(tmp_path / "sub", middle="defaults: ../base.yaml")
    assert load_config(write(tmp_path, child="defaults: sub/middle.yaml")).grpo.seed == 7


def test_circle_of_parents_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, a="defaults: b.yaml", b="defaults: a.yaml")
    with pytest.raises(ConfigError, match=r"circle: b.yaml -> a.yaml -> b.yaml"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: nowhere.yaml", "nowhere.yaml: there is no such configuration file"),
        ("defaults: {a: b}", "`defaults` must be a path or a list of paths"),
        ("- 1", "must be a mapping of keys, found a list"),
        ("grpo: {seed: 1", "not readable as YAML"),
        ("grpo: {seed: 1}\ngrpo: {seed: 2}", "duplicate key grpo"),
        (
            "grpo.seed: 3",
            r"`grpo.seed` is a dotted key; in a file write it nested: grpo: {seed: ...} \(set in .*run.yaml",
        ),
        ("policy: {megatron_cfg: {optimizer.lr: 3}}", r"nested: policy: {megatron_cfg: {optimizer: {lr: ...}}}"),
        ("a.b: 1\na.c: 2\na.d: 3", r"`a.b` is a dotted key.*\(and 2 more\)"),
    ],
)
def test_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, run=text))


def test_dots_in_the_names_of_a_free_mapping_are_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path, run="policy: {hf_config_overrides: {a.b: 1}}")
    assert load_config(path).policy.hf_config_overrides == {"a.b": 1}


def test_mappings_merge_lists_replace_and_override_mark_replaces_a_mapping(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        parent="data: {train: {task_params: {a: 1, b: [1, 2]}}, default: {prompt_file: x}}",
        merged="defaults: parent.yaml\ndata: {train: {task_params: {b: [3]}}}",
        replaced="defaults: parent.yaml\ndata: {train: {task_params: {_override_: true, c: 1}}}",
    )
    assert load_config(path.with_name("merged.yaml")).data.train.task_params == {"a": 1, "b": [3]}
    replaced = load_config(path).data
    assert replaced.train.task_params == {"c": 1}
    assert replaced.default.prompt_file == "x"


def test_references_are_absolute_or_relative_and_calculate(tmp_path: Path) -> None:
    text = """
grpo:
  num_prompts_per_step: 6
  num_generations_per_prompt: ${.num_prompts_per_step}
  seed: ${add:${grpo.num_prompts_per_step},${.num_generations_per_prompt}}
policy:
  train_global_batch_size: ${mul:${grpo.num_prompts_per_step},${grpo.num_generations_per_prompt}}
  train_micro_batch_size: ${div:${.train_global_batch_size},12}
  logprob_batch_size: ${max:2,${.train_micro_batch_size}}
"""
    config = load_config(write(tmp_path, run=text))
    assert config.grpo.seed == 12
    policy = config.policy
    assert (policy.train_global_batch_size, policy.train_micro_batch_size, policy.logprob_batch_size) == (36, 3, 3)


def test_defaults_follow_the_keys_they_refer_to(empty: Path) -> None:
    policy = load_config(empty, ["policy.max_total_sequence_length=1024", "policy.precision=float32"]).policy
    assert policy.generation.max_new_tokens == policy.generation.vllm_cfg.max_model_len == 1024
    assert policy.sequence_packing.train_mb_tokens == 1024 * 4
    assert policy.megatron_cfg.pipeline_dtype == policy.generation.vllm_cfg.precision == "float32"
    assert policy.tokenizer.name == policy.model_name


def test_exponents_without_a_point_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, run="policy: {megatron_cfg: {optimizer: {lr: 1e-5, weight_decay: 0}}}")
    optimizer = load_config(path, ["policy.megatron_cfg.optimizer.adam_eps=1e-7"]).policy.megatron_cfg.optimizer
    assert (optimizer.lr, optimizer.adam_eps, optimizer.weight_decay) == (1e-5, 1e-7, 0.0)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("policy.generation.stop_strings=[a,b]", ["a", "b"]),
        ("policy.generation.stop_strings=['</a>', \"x, y\"]", ["</a>", "x, y"]),
        ("policy.generation.stop_strings=null", None),
        ("+policy.generation.stop_strings=[a]", ["a"]),
        ("++policy.generation.stop_strings=[a]", ["a"]),
    ],
)
def test_override_grammar(empty: Path, override: str, value: object) -> None:
    assert load_config(empty, [override]).policy.generation.stop_strings == value


def test_quoted_text_may_hold_anything(empty: Path) -> None:
    config = load_config(empty, ["logger.wandb.name='a, b = c'", "logger.run_name=plain words", "logger.log_dir='12'"])
    assert (config.logger.wandb.name, config.logger.run_name, config.logger.log_dir) == (
        "a, b = c",
        "plain words",
        "12",
    )


def test_switches_may_be_capitalised_as_in_python(empty: Path) -> None:
    assert load_config(empty, ["logger.wandb_enabled=True"]).logger.wandb_enabled is True


def test_deleted_key_has_its_default_again(tmp_path: Path) -> None:
    path = write(tmp_path, run="grpo: {seed: 3}\ndata: {train: {task_params: {a: 1, b: 2}}}")
    config = load_config(path, ["~grpo.seed", "~data.train.task_params.a"])
    assert config.grpo.seed == 42
    assert config.data.train.task_params == {"b": 2}


def test_free_mappings_take_any_key(empty: Path) -> None:
    kwargs = load_config(empty, ["policy.generation.vllm_kwargs.swap.a=1", "+policy.generation.vllm_kwargs.b=x"])
    assert kwargs.policy.generation.vllm_kwargs == {"swap": {"a": 1}, "b": "x"}


def test_mapping_override_merges_and_optional_section_can_be_filled(empty: Path) -> None:
    config = load_config(empty, ["logger.wandb={project: p}", "data.validation.dataset_name=gsm8k"])
    assert config.logger.wandb.project == "p"
    assert config.data.validation is not None
    assert config.data.validation.dataset_name == "gsm8k"
    assert config.data.held_out == 0.0


def test_overrides_apply_in_order(empty: Path) -> None:
    assert load_config(empty, ["grpo.seed=1", "grpo.seed=2", "++grpo.seed=3"]).grpo.seed == 3


def test_environment_of_ones_own(empty: Path) -> None:
    overrides = ["+env.mine.entry_point=my.module:reward", "env.mine.num_workers=3", "data.train.env_name=mine"]
    environments = load_config(empty, overrides).env.named()
    assert list(environments) == ["math", "reasoning_gym", "mine"]
    assert environments["mine"].num_workers == 3


def test_base_model_is_not_wrapped_unless_asked(empty: Path) -> None:
    peft = load_config(empty).policy.megatron_cfg.peft
    assert not peft.enabled
    assert peft.lora_dtype is None


def test_nemo_rl_keys_that_ask_for_nothing_are_accepted(tmp_path: Path) -> None:
    text = """
grpo:
  use_dynamic_sampling: false
  dynamic_sampling_max_gen_batches: 10
  batch_multiplier: 1
  reward_scaling: {enabled: false, source_min: 0.0}
  seq_logprob_error_threshold: null
policy:
  dtensor_cfg: {enabled: false, tensor_parallel_size: 1}
  dynamic_batching: {enabled: false, train_mb_tokens: "${mul:${policy.max_total_sequence_length},4}"}
  optimizer: null
  scheduler: null
  megatron_cfg:
    converter_type: Qwen2ForCausalLM
    expert_tensor_parallel_size: 1
    moe_router_load_balancing_type: none
    moe_permute_fusion: false
    peft: {a2a_experimental: false}
    optimizer: {bf16: true, fp16: false, optimizer_cpu_offload: false, optimizer_offload_fraction: 0.0}
    distributed_data_parallel_config: {use_custom_fsdp: false, data_parallel_sharding_strategy: optim_grads_params}
    fp8_cfg: {enabled: false, fp8: e4m3}
  generation:
    vllm_cfg: {use_deep_gemm: false, num_first_layers_in_bf16: 0, vllm_metrics_logger_interval: 0.5}
checkpointing: {model_save_format: safetensors, save_consolidated: false}
data: {use_multiple_dataloader: false, default: {processor: math_hf_data_processor}}
env: {math: {math_verify_impl: hf_math_verify}}
logger: {swanlab_enabled: false, swanlab: {project: x, name: y}}
"""
    assert load_config(write(tmp_path, run=text)) == load_config(
        write(tmp_path, plain="policy: {megatron_cfg: {optimizer: {bf16: true}}}")
    )


def test_resolved_yaml_reads_back_to_an_equal_configuration(tmp_path: Path, empty: Path) -> None:
    overrides = ["+env.mine.entry_point=a.b:c", "data.train.env_name=mine", "policy.generation.stop_strings=['</a>']"]
    config = load_config(empty, overrides)
    assert load_config(write(tmp_path, resolved=resolved_yaml(config))) == config
    assert "${" not in resolved_yaml(config)


def test_configuration_cannot_be_changed_after_loading(empty: Path) -> None:
    with pytest.raises(ValidationError):
        load_config(empty).grpo.seed = 1


def test_root_can_be_made_from_a_mapping() -> None:
    config = MasterConfig.model_validate({"policy": {"max_total_sequence_length": 64}})
    assert config.policy.generation.max_new_tokens == 64


def test_loading_files_does_not_need_the_heavy_libraries(empty: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from nemo_rl.config import load_config; import nemo_rl.config.plan, "
        f"nemo_rl.config.cli; load_config(Path({str(empty)!r})); "
        "print([m for m in ('torch', 'ray', 'vllm', 'transformers', 'megatron') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("period", [0, -1])
def test_validation_can_be_switched_off(empty: Path, period: int) -> None:
    config = load_config(empty, [f"grpo.val_period={period}", "checkpointing.metric_name=train:reward"])
    assert config.grpo.val_period == period


def test_validation_may_use_the_training_task_with_another_seed(empty: Path) -> None:
    overrides = [f"data.{part}.dataset_name=reasoning_gym:chain_sum" for part in ("train", "validation")]
    assert load_config(empty, [*overrides, "data.validation.seed=7"]).data.validation is not None


@pytest.mark.parametrize(("overrides", "sleeps"), [
    ([], True),
    (["policy.generation.vllm_cfg.enable_sleep_mode=false"], False),
    (["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=1",
      "cluster.gpus_per_node=2"], False),
])  # fmt: skip
def test_only_an_engine_that_shares_its_devices_sleeps(overrides: list[str], sleeps: bool) -> None:
    config = load_config(Path(__file__).parents[3] / "examples/configs/grpo_math_1B.yaml", overrides)
    assert config.policy.generation.sleeps is sleeps
