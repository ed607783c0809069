"""Merging a PEFT folder into a model folder."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nemo_rl.data.errors import DataError
from nemo_rl.policy.adapter_folder import AdapterError, check_adapter_folder
from nemo_rl.utils.peft_merge import merge_folder, merged_matrix, read_adapter
from nemo_rl.utils.tiny_model import make_tiny_model


@pytest.fixture
def model_and_adapter(tmp_path: Path) -> tuple[Path, Path]:
    model = make_tiny_model(tmp_path / "model")
    peft = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    peft.save_pretrained(tmp_path / "adapter")
    return tmp_path / "model", tmp_path / "adapter"


def test_merged_folder_computes_what_peft_computes(model_and_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    model, adapter = model_and_adapter
    assert merge_folder(model, adapter, tmp_path / "merged") == 8  # q_proj and down_proj of 4 layers
    tokens = torch.arange(4, 24)[None]
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        plain = base(tokens).logits
        expected = PeftModel.from_pretrained(base, adapter)(tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(tokens).logits
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-4)
    assert (merged - plain).abs().max() > 0.1


def test_base_is_not_written_and_tokenizer_comes_along(model_and_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    model, adapter = model_and_adapter
    before = (model / "model.safetensors").read_bytes()
    merge_folder(model, adapter, tmp_path / "merged")
    assert (model / "model.safetensors").read_bytes() == before
    assert {file.name for file in (tmp_path / "merged").iterdir()} == {file.name for file in model.iterdir()}


def test_sum_is_rounded_once() -> None:
    weight = torch.tensor([[1.0]], dtype=torch.bfloat16)
    update = (torch.full((2, 1), 0.003), torch.ones(1, 2), 1.0)  # 0.006 in all; each half alone would round away
    assert merged_matrix(weight, update, "w").item() == pytest.approx(1.0078125)


def test_adapter_without_a_place_is_refused(model_and_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    model, adapter = model_and_adapter
    file = adapter / "adapter_model.safetensors"
    save_file({name.replace("layers.0", "layers.9"): tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(DataError, match=r"layers\.9"):
        merge_folder(model, adapter, tmp_path / "merged")


@pytest.mark.parametrize(("entry", "value"), [
    ("init_lora_weights", "pissa_niter_4"), ("init_lora_weights", "olora"), ("alora_invocation_tokens", [5]),
])  # fmt: skip
def test_adapter_of_another_base_is_refused(tmp_path: Path, entry: str, value: object) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, entry: value}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").touch()
    with pytest.raises(DataError, match=f"sets {entry}=.*no LoRA of the base model as it is"):
        read_adapter(tmp_path)
    with pytest.raises(AdapterError, match=f"sets {entry}=.*no LoRA of the base model as it is"):
        check_adapter_folder(tmp_path, 4, 8)


def test_what_is_not_plain_lora_is_refused(model_and_adapter: tuple[Path, Path]) -> None:
    _, adapter = model_and_adapter
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_dora": True}))
    with pytest.raises(DataError, match="use_dora"):
        read_adapter(adapter)
