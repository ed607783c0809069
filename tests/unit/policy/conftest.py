"""One pool of rank processes and one set of tiny models for all tests of the policy."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.utils.tiny_model import make_tiny_model
from tests.unit.policy import jobs
from tests.unit.policy.layouts import LAYOUTS, PACKED, TEMPERATURE
from tests.unit.policy.ranks import RankPool
from tests.unit.policy.reference import make_batch, with_noisy_logprobs


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    pool = RankPool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny float32 model: qwen3 (QK norm), llama (GQA), qwen2 (QKV bias, tied embeddings), gemma3."""
    folder = tmp_path_factory.mktemp("models")

    def make(name: str) -> Path:
        path = folder / name
        if not path.is_dir():
            torch.manual_seed(11)
            model = make_tiny_model(path, architecture=name.partition("-")[0], tie=True if name == "qwen2" else None)
            if name == "qwen2":
                with torch.no_grad():
                    for key, parameter in model.named_parameters():
                        if key.endswith("bias"):  # Hugging Face starts biases at zero, which would hide a lost one
                            parameter.normal_(std=0.3)
                model.save_pretrained(path)
            if name.endswith("-131"):  # divides by no tensor-parallel size
                model.resize_token_embeddings(131)
                model.save_pretrained(path)
        return path

    return make


@pytest.fixture(scope="session")
def batches(pool: RankPool, models: Callable[[str], Path]) -> Callable[[str], TrainBatch]:
    """A batch whose old log-probabilities are near those of a model's start, so that clipping acts on some tokens."""

    @cache
    def make(name: str) -> TrainBatch:
        batch = make_batch()
        live = pool.run(1, jobs.live_logprobs, str(models(name)), [TEMPERATURE], batch)[0]
        return with_noisy_logprobs(batch, live)

    return make


@pytest.fixture(scope="session")
def reports(
    pool: RankPool, models: Callable[[str], Path], batches: Callable[[str], TrainBatch]
) -> Callable[[str, str, bool], list[dict[str, Any]]]:
    """`jobs.measure` of (model, layout, packed), per rank; each is run once."""

    @cache
    def measured(model: str, layout: str, packed: bool) -> list[dict[str, Any]]:
        world, overrides = LAYOUTS[layout]
        settings = [TEMPERATURE, *overrides, *(PACKED if packed else [])]
        return pool.run(world, jobs.measure, str(models(model)), settings, batches(model), 2)

    return measured
