"""A rollout engine with experts, whose weights vLLM keeps repacked: syncs that end well and syncs that do not."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from nemo_rl.algorithms.data_setup import CPU_HEAD_SIZES
from nemo_rl.config.loader import load_config
from nemo_rl.generation.interfaces import GenerationOutput
from nemo_rl.generation.vllm.environment import engine_environment
from nemo_rl.utils.tiny_model import SIZE, make_tiny_tokenizer
from tests.unit.generation.expert_jobs import CONFIG, PROMPT, Report, Weights, serve, spreads_experts

CHANGED = "model.layers.1.mlp.experts.6.up_proj.weight"


@pytest.fixture(scope="module")
def model() -> Qwen3MoeForCausalLM:
    torch.manual_seed(5)
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    tokens = {"vocab_size": 128, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    size = SIZE | {"num_hidden_layers": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**tokens, **size, **experts, tie_word_embeddings=False))


@pytest.fixture(scope="module")
def versions(model: Qwen3MoeForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """Three models under the names that a checkpoint has, everything moved a little in a way of its own."""
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("names")
    model.save_pretrained(folder)
    base = load_file(folder / "model.safetensors")
    assert CHANGED in base
    return [{name: t + 0.05 * torch.randn_like(t) for name, t in base.items()} for _ in range(3)]


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine_environment(load_config(CONFIG).policy.generation, cpu=True).items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CONFIG.parents[2]), os.environ.get("PYTHONPATH", "")]))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            yield process


@pytest.fixture(scope="module")
def report(
    process: ProcessPoolExecutor,
    model: Qwen3MoeForCausalLM,
    versions: list[Weights],
    tmp_path_factory: pytest.TempPathFactory,
) -> Report:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    make_tiny_tokenizer().save_pretrained(folder)
    return process.submit(serve, str(folder), versions, CHANGED).result(timeout=120)


def difference(output: GenerationOutput, weights: Weights, folder: Path) -> float:
    """Between the engine's log-probabilities of its own answer and Hugging Face's with the same weights."""
    from safetensors.torch import save_file

    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([*PROMPT, *output.token_ids])
    with torch.no_grad():
        logprobs = model(tokens[None]).logits[0].log_softmax(-1)
    answer = torch.arange(len(PROMPT), len(tokens))
    return float((logprobs[answer - 1, tokens[answer]] - torch.tensor(output.logprobs)).abs().max())


def test_answers_are_those_of_the_published_weights_also_after_an_update_that_broke_off_or_was_refused(
    report: Report, model: Qwen3MoeForCausalLM, versions: list[Weights], tmp_path: Path
) -> None:
    model.config.save_pretrained(tmp_path)
    assert difference(report.whole, versions[0], tmp_path) < 2e-5
    assert difference(report.after_broken, versions[2], tmp_path) < 2e-5
    assert difference(report.after_complaint, versions[1], tmp_path) < 2e-5
    assert difference(report.after_complaint, versions[0], tmp_path) > 0.1


def test_an_expert_that_differs_in_one_entry_fails_verification(report: Report) -> None:
    assert "differ between trainer and engine" in report.complaint


def test_head_sizes_that_a_cpu_serves_are_vllms(report: Report) -> None:
    assert list(CPU_HEAD_SIZES) == report.head_sizes


@pytest.mark.parametrize(("ranks", "spread"), [(1, False), (2, True)])
def test_expert_parallel_size_reaches_vllm(process: ProcessPoolExecutor, ranks: int, spread: bool) -> None:
    assert process.submit(spreads_experts, ranks).result(timeout=120) is spread
