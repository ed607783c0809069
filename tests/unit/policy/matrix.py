"""One cell of docs/support-matrix.md: an architecture at a layout, with the largest differences that were found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.utils.tiny_model import SIZE, make_tiny_model, make_tiny_tokenizer
from tests.unit.policy.jobs import MEGATRON, PEFT, build, logprobs, shards, train
from tests.unit.policy.layouts import LAYOUTS, TEMPERATURE
from tests.unit.policy.ranks import Place, RankFailure, RankPool
from tests.unit.policy.reference import (
    assemble,
    hf_logprobs,
    largest_difference,
    make_batch,
    whole_logprobs,
    with_noisy_logprobs,
)

ARCHITECTURES = {
    "llama": "Llama (GQA)",
    "qwen2": "Qwen2 (QKV bias, tied embeddings)",
    "qwen3": "Qwen3 (QK norm)",
    "qwen3_moe": "Qwen3-MoE (8 experts, 2 active)",
    "qwen3_moe_attention": "Qwen3-MoE, LoRA on attention only",
    "gemma3": "Gemma 3 (local and global layers)",
}
MATRIX_LAYOUTS: dict[str, tuple[int, list[str]]] = LAYOUTS | {
    "ep2": (2, [f"{MEGATRON}.expert_model_parallel_size=2"]),
    "tp2-sp-ep2": (2, [*LAYOUTS["tp2-sp"][1], f"{MEGATRON}.expert_model_parallel_size=2"]),
}
SETTINGS = {"qwen3_moe_attention": [f"{PEFT}.target_modules=[linear_qkv,linear_proj]"]}
COLUMNS = ("forward", "gradient", "adapter export", "reload")


@dataclass(frozen=True)
class Cell:
    """Largest differences by column, or why there are none."""

    values: dict[str, float]
    refusal: str | None = None


def make_architecture(name: str, folder: Path) -> str:
    """A tiny random float32 checkpoint of an architecture; its folder."""
    path = folder / name
    torch.manual_seed(17)
    if name in ("llama", "qwen2", "qwen3", "gemma3"):
        # vLLM takes a Qwen2's head size to be its hidden size by its heads, whatever its head_dim.
        size = {"hidden_size": 128} if name == "qwen2" else {}
        model: Any = make_tiny_model(path, architecture=name, tie=True if name == "qwen2" else None, **size)
    else:
        common = {"vocab_size": 128, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "rms_norm_eps": 1e-6}
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**common, **SIZE, **experts, tie_word_embeddings=False))
        make_tiny_tokenizer().save_pretrained(path)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(path)
    return str(path)


def start(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch) -> torch.Tensor | None:
    return logprobs(build(place, model, overrides), batch)


def visit(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, folder: str) -> dict[str, Any]:
    """Live log-probabilities and gradients; merged model, adapter and checkpoint are left in `folder`."""
    worker = build(place, model, overrides)
    report = {"live": logprobs(worker, batch), "start": shards(worker)}
    worker.save_merged(f"{folder}/merged")
    worker.save_adapter(f"{folder}/adapter")
    worker.save(f"{folder}/policy")
    train(worker, batch)
    return report | {"gradients": shards(worker, "gradient")}


def reload(place: Place, model: str, overrides: Sequence[str], folder: str) -> dict[str, Any]:
    worker = build(place, model, [*overrides, "grpo.seed=999"])
    worker.load_weights(f"{folder}/policy")
    return shards(worker)


class Matrix:
    """Measures cells against one rank (gradients) and against Hugging Face (everything else)."""

    def __init__(self, pool: RankPool, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self.models: dict[str, str] = {}
        self.batches: dict[str, TrainBatch] = {}
        self.gradients: dict[str, dict[str, torch.Tensor]] = {}

    def cell(self, architecture: str, layout: str) -> Cell:
        """Measure; what the policy refuses or a dependency gets wrong ends up as the cell's refusal."""
        if architecture not in self.models:
            self.models[architecture] = make_architecture(architecture, self.folder)
        try:
            return Cell(self._measure(architecture, self.models[architecture], layout))
        except (RankFailure, TimeoutError) as error:
            return Cell({}, str(error).strip().splitlines()[-1])

    def _measure(self, architecture: str, model: str, layout: str) -> dict[str, float]:
        from peft import PeftModel

        world, overrides = MATRIX_LAYOUTS[layout]
        basics = [TEMPERATURE, *SETTINGS.get(architecture, [])]
        settings, folder = [*basics, *overrides], self.folder / f"{architecture}-{layout}"
        if architecture not in self.batches:
            live = self.pool.run(1, start, model, basics, make_batch())[0]
            self.batches[architecture] = with_noisy_logprobs(make_batch(), live)
        batch = self.batches[architecture]
        report = self.pool.run(world, visit, model, settings, batch, str(folder))
        gradients = assemble([r["gradients"] for r in report])
        reference = self.gradients.setdefault(architecture, gradients)  # the first layout is one rank
        loaded = assemble(self.pool.run(1, reload, model, basics, str(folder)))
        live = whole_logprobs([r["live"] for r in report])
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
        with torch.no_grad():
            forward = float((hf_logprobs(merged, batch, 0.7) - live).abs().max())
            opened = PeftModel.from_pretrained(base, folder / "adapter")
            adapter = float((hf_logprobs(opened, batch, 0.7) - live).abs().max())
        return {
            "forward": forward,
            "gradient": largest_difference(gradients, reference),
            "adapter export": adapter,
            "reload": largest_difference(loaded, assemble([r["start"] for r in report])),
        }
