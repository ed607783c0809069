"""Evaluation: its metrics, and one adapter served merged and natively."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemo_rl.algorithms.evaluation import evaluate, evaluation_metrics, with_checkpoint_settings
from nemo_rl.config import load_config
from nemo_rl.config.loader import resolved_yaml
from nemo_rl.config.schema import EvalMasterConfig
from nemo_rl.data.interfaces import Prompt
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.generation.interfaces import FinishReason
from nemo_rl.utils.checkpoint_files import write_manifest
from nemo_rl.utils.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parents[3]


def group(*rewards: float) -> RolloutGroup:
    prompt = Prompt("row", (), (1,), "math", {})
    return RolloutGroup(
        "group",
        [
            Rollout("group", i, prompt, [1, 2], [False, True], [0.0, 0.0], [], [], r, FinishReason.STOP)
            for i, r in enumerate(rewards)
        ],
    )


def test_metrics_of_two_problems_with_four_tries() -> None:
    metrics = evaluation_metrics([group(1, 0, 0, 0), group(1, 1, 1, 1)], tries=4, k=3)
    assert metrics["accuracy"] == pytest.approx(5 / 8)
    assert metrics["pass@1"] == pytest.approx(5 / 8)
    assert metrics["pass@2"] == pytest.approx((0.5 + 1) / 2)
    assert metrics["pass@3"] == pytest.approx((0.75 + 1) / 2)
    assert metrics["pass@4"] == 1.0
    assert metrics["accuracy_stderr"] == pytest.approx(0.375)  # of 0.25 and 1.0: deviation 0.53 / sqrt(2)


def config(folder: Path, model: Path, *overrides: str) -> EvalMasterConfig:
    settings = [
        f"policy.model_name={model}",
        "policy.precision=float32",
        "policy.max_total_sequence_length=64",
        "policy.generation.max_new_tokens=6",
        "policy.generation.val_temperature=0",
        "policy.generation.vllm_cfg.enforce_eager=true",
        "policy.generation.vllm_cfg.kv_cache_gb_cpu=0.25",
        "data.dataset_name=tiny_max",
        "data.prompt_file=null",
        "data.size=16",
        "cluster.accelerator=cpu",
        f"eval.save_path={folder}",
    ]
    return load_config(ROOT / "examples/configs/eval.yaml", [*settings, *overrides], EvalMasterConfig)


def test_checkpoint_is_evaluated_on_the_base_that_it_was_trained_from(tmp_path: Path) -> None:
    run = load_config(
        ROOT / "examples/configs/grpo_tiny_cpu.yaml",
        [
            "checkpointing.pretrained_checkpoint=somewhere",
            "policy.megatron_cfg.peft.dim=4",
            "policy.tokenizer.chat_template_kwargs={enable_thinking: false}",
        ],
    )
    (tmp_path / "config.yaml").write_text(resolved_yaml(run))
    write_manifest(tmp_path, 0)
    checkpoint = f"eval.checkpoint={tmp_path}"
    unnamed = load_config(ROOT / "examples/configs/eval.yaml", [checkpoint], EvalMasterConfig)
    found = with_checkpoint_settings(unnamed)
    assert found.checkpointing.pretrained_checkpoint == "somewhere"
    assert found.policy.model_name == found.policy.tokenizer.name == "tiny-digits-qwen3"
    assert found.policy.megatron_cfg.peft.dim == 4
    assert found.policy.tokenizer.chat_template_kwargs == {"enable_thinking": False}

    elsewhere = config(tmp_path / "eval", tmp_path, checkpoint, "eval.pretrained_checkpoint=moved")
    found = with_checkpoint_settings(elsewhere)
    assert found.checkpointing.pretrained_checkpoint == "moved"
    assert found.policy.model_name == found.policy.tokenizer.name == str(tmp_path)


def adapted(folder: Path) -> tuple[Path, Path]:
    model = make_tiny_model(folder / "model")
    peft = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    peft.save_pretrained(folder / "adapter")
    return folder / "model", folder / "adapter"


def answers(folder: Path) -> list[str]:
    return [json.loads(line)["messages"][-1]["content"] for line in (folder / "samples.jsonl").read_text().splitlines()]


def hugging_face_answers(model: Path, adapter: Path, samples: Path) -> list[str]:
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    live = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter)
    texts = []
    for line in (samples / "samples.jsonl").read_text().splitlines():
        messages = json.loads(line)["messages"][:-1]
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = torch.tensor([tokenizer(rendered, add_special_tokens=False)["input_ids"]])
        out = live.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        texts.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    return texts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_adapter_answers_alike_merged_native_and_in_hugging_face(tmp_path: Path) -> None:
    model, adapter = adapted(tmp_path)
    for how in ("merged", "native"):
        evaluate(config(tmp_path / how, model, f"eval.adapter_path={adapter}", f"eval.adapter={how}"))
    evaluate(config(tmp_path / "plain", model))
    assert answers(tmp_path / "merged") == hugging_face_answers(model, adapter, tmp_path / "merged")
    assert answers(tmp_path / "native") == answers(tmp_path / "merged")
    assert answers(tmp_path / "plain") != answers(tmp_path / "merged")
    assert {file.name for file in (tmp_path / "merged").iterdir()} == {"samples.jsonl", "metrics.json", "config.yaml"}
