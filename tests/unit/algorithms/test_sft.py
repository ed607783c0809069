"""Supervised fine-tuning: the loss against Hugging Face's, and a run stopped and resumed against one that was not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nemo_rl.algorithms.losses import NLLLoss, Normalizer
from nemo_rl.algorithms.sft import SFTRun, sft_train, validation_batches
from nemo_rl.algorithms.sft_data import load_sft_data, sft_batch
from nemo_rl.config import load_config
from nemo_rl.config.schema import SFTMasterConfig
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.utils.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder)
    return folder


def config(folder: Path, model: Path, *overrides: str) -> SFTMasterConfig:
    return load_config(
        ROOT / "examples/configs/sft_tiny_cpu.yaml",
        [
            f"policy.model_name={model}",
            "policy.train_global_batch_size=16",
            "policy.train_micro_batch_size=8",
            "data.train.size=96",
            "data.train.split_validation_size=16",
            "sft.val_period=0",
            "sft.val_at_end=true",
            "sft.max_num_steps=4",
            "checkpointing.save_period=2",
            "logger.monitor_gpus=false",
            f"checkpointing.checkpoint_dir={folder / 'checkpoints'}",
            f"logger.log_dir={folder / 'logs'}",
            *overrides,
        ],
        SFTMasterConfig,
    )


def hugging_face_loss(folder: Path, batch: TrainBatch) -> float:
    """Cross entropy as Hugging Face computes it: labels are the assistant's tokens, the rest is ignored."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    labels_BT = torch.where(batch.mask_BT, batch.token_ids_BT, -100)
    columns = torch.arange(batch.token_ids_BT.shape[1])
    attention_BT = (columns[None] < batch.lengths_B[:, None]).long()
    with torch.no_grad():
        return float(model(batch.token_ids_BT, attention_mask=attention_BT, labels=labels_BT).loss)


def test_loss_is_hugging_faces_cross_entropy_on_assistant_tokens(tmp_path: Path, model_folder: Path) -> None:
    batch = sft_batch(load_sft_data(config(tmp_path, model_folder)).train[:16])
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(batch.token_ids_BT).logits.log_softmax(-1)[:, :-1]
    logprobs_BT = torch.zeros(batch.token_ids_BT.shape)
    logprobs_BT[:, 1:] = logprobs.gather(-1, batch.token_ids_BT[:, 1:, None])[..., 0]
    whole = Normalizer.of(batch.mask_BT)
    parts = [(logprobs_BT[i : i + 4], batch.rows(slice(i, i + 4))) for i in range(0, 16, 4)]
    loss = sum(float(NLLLoss()(lp[:, : rows.token_ids_BT.shape[1]], rows, whole)[0]) for lp, rows in parts)
    assert loss == pytest.approx(hugging_face_loss(model_folder, batch), rel=1e-5)


def test_validation_uses_so_many_batches_or_all(tmp_path: Path, model_folder: Path) -> None:
    settings = ["sft.val_global_batch_size=6"]
    examples: list[Any] = list(range(16))
    few = config(tmp_path, model_folder, *settings, "sft.val_batches=2")
    whole = config(tmp_path, model_folder, *settings, "sft.val_batches=0")
    assert [len(b) for b in validation_batches(few, examples)] == [6, 6]
    assert [len(b) for b in validation_batches(whole, examples)] == [6, 6, 4]


def train(settings: SFTMasterConfig) -> tuple[list[float], torch.Tensor, dict[str, float]]:
    """Losses of the steps done now, the trained policy's log-probabilities of one batch, the last metrics."""
    from nemo_rl.algorithms.sft_setup import sft_run

    with sft_run(settings) as run:
        first = run.state.step
        with run.progress:
            sft_train(run)
        losses = [line["train/loss"] for line in run.logger.history if line["step"] > first]
        return losses, logprobs_of(run), run.logger.history[-1]


def logprobs_of(run: SFTRun) -> torch.Tensor:
    return run.policy.logprobs(sft_batch(run.validation_examples))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_learns_and_resumes_bit_for_bit(tmp_path: Path, model_folder: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = config(whole, model_folder)
    batch = sft_batch(load_sft_data(settings).train)
    losses, logprobs_BT, last = train(settings)
    assert losses[0] == pytest.approx(hugging_face_loss(model_folder, batch), rel=0.1)
    assert losses[1] < losses[0] and losses[3] < losses[2]
    assert last["validation/val_loss"] < losses[0]

    before, _, _ = train(
        config(parts, model_folder, "sft.max_num_steps=2", "sft.val_at_end=false", "checkpointing.metric_name=null")
    )
    after, resumed_BT, _ = train(config(parts, model_folder))
    assert before + after == losses
    assert torch.equal(resumed_BT, logprobs_BT)
