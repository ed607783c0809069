"""What vLLM makes of our arguments: the model that the trainer has, and the tokenizer that the configuration names."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_rl.algorithms.data_setup import overridden_config
from nemo_rl.config.loader import load_config
from nemo_rl.generation.vllm.engine_args import engine_arguments
from nemo_rl.utils.tiny_model import make_tiny_model, make_tiny_tokenizer

CONFIG = Path(__file__).parents[3] / "examples/configs/grpo_tiny_cpu.yaml"
ROPE = "rope_parameters: {rope_type: linear, factor: 4.0, rope_theta: 5000.0}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Of a model, and of a tokenizer alone."""
    model, tokenizer = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("tokenizer")
    make_tiny_model(model, num_hidden_layers=1)
    make_tiny_tokenizer().save_pretrained(tokenizer)
    return str(model), str(tokenizer)


def model_config(folders: tuple[str, str], *overrides: str) -> Any:
    """vLLM's own reading of the arguments."""
    from vllm.engine.arg_utils import EngineArgs

    policy = load_config(CONFIG, [*overrides]).policy
    return EngineArgs(**engine_arguments(policy, *folders, cpu=True, seed=0, sleep_mode=False)).create_model_config()


def test_overrides_reach_the_engine_as_they_reach_the_trainer(folders: tuple[str, str]) -> None:
    override = f"policy.hf_config_overrides={{rms_norm_eps: 0.5, {ROPE}}}"
    engine = model_config(folders, override)
    assert engine.hf_config.rms_norm_eps == 0.5
    assert engine.hf_config.rope_parameters == {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
    trainer = overridden_config(load_config(CONFIG, [override]).policy, folders[0]).to_dict()
    assert engine.hf_config.to_dict() == trainer | {"head_dtype": "float32"}


def test_logits_are_float32_whatever_the_overrides_say(folders: tuple[str, str]) -> None:
    precision = "policy.precision=bfloat16"
    assert (
        model_config(folders, precision, "policy.hf_config_overrides={head_dtype: model}").head_dtype == torch.float32
    )


@pytest.mark.parametrize("stop_strings", ["null", "['!']"])
def test_stop_strings_are_looked_for_with_the_named_tokenizer(folders: tuple[str, str], stop_strings: str) -> None:
    config = model_config(folders, f"policy.generation.stop_strings={stop_strings}")
    assert config.tokenizer == folders[1]
    assert config.skip_tokenizer_init == (stop_strings == "null")
