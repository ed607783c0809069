"""One policy rank in this very process, without Ray: for converting checkpoints, whatever layout wrote them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError

from nemo_rl.config.messages import problems
from nemo_rl.config.schema import MasterConfig, SFTMasterConfig
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.policy.megatron.worker import MegatronPolicyWorker
from nemo_rl.utils.checkpoint_files import CONFIG_FILE, CheckpointError, verify

TrainingConfig = MasterConfig | SFTMasterConfig


def config_of_checkpoint(checkpoint: Path) -> TrainingConfig:
    """The configuration of the run that wrote `checkpoint`, found whole. Raises CheckpointError otherwise."""
    verify(checkpoint)
    tree = yaml.safe_load((checkpoint / CONFIG_FILE).read_text(encoding="utf-8"))
    try:
        return (MasterConfig if "grpo" in tree else SFTMasterConfig).model_validate(tree)
    except ValidationError as error:
        raise CheckpointError(f"{checkpoint / CONFIG_FILE} is not a configuration: {problems(error)}") from error


@contextmanager
def single_rank(config: TrainingConfig, model: str, adapter: Path | None = None) -> Iterator[MegatronPolicyWorker]:
    """The policy of `config` on one rank, with fresh adapters or those of a PEFT folder."""
    one = dict.fromkeys(("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"), 1)
    layout = one | {
        "expert_model_parallel_size": 1,
        "sequence_parallel": False,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
    }
    policy = config.policy.model_copy(update={"megatron_cfg": config.policy.megatron_cfg.model_copy(update=layout)})
    start = {"adapter_path": None if adapter is None else str(adapter), "reference": "base"}
    checkpointing = config.checkpointing.model_copy(update=start)
    alone = config.model_copy(update={"policy": policy, "checkpointing": checkpointing})
    worker = MegatronPolicyWorker(alone, model, rank=0, world=1)
    with tempfile.TemporaryDirectory(prefix="nemo_rl-rendezvous-") as folder:
        worker.build(f"file://{folder}/store")
        try:
            yield worker
        finally:
            worker.shutdown()


def probe(vocabulary: int, rows: int = 4, length: int = 32) -> TrainBatch:
    """Rows of random tokens, all of which count: two models that agree on them agree."""
    tokens = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[:, 0] = False
    return TrainBatch(
        token_ids_BT=tokens,
        lengths_B=torch.full((rows,), length),
        loss_mask_BT=mask,
        sample_mask_B=torch.ones(rows, dtype=torch.bool),
        advantages_B=torch.zeros(rows),
        generation_logprobs_BT=torch.zeros(rows, length),
    )


@torch.no_grad()
def hugging_face_logprobs(model: Any, batch: TrainBatch, temperature: float) -> torch.Tensor:
    """What the trainer's log-probabilities of `probe` rows should be, from a Hugging Face model; [B, T]."""
    logits = model(batch.token_ids_BT).logits.float() / temperature
    picked = logits.log_softmax(-1)[:, :-1].gather(2, batch.token_ids_BT[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(picked, (1, 0))
