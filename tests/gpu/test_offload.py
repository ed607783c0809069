"""The policy leaves its GPU, all of it, and comes back bit for bit. Needs one NVIDIA GPU; skipped visibly elsewhere."""

import pytest
import torch

from nemo_rl.algorithms.losses import Normalizer
from nemo_rl.algorithms.settings import make_loss
from nemo_rl.config.schema import MasterConfig
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.utils.tiny_model import make_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none"),
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    from nemo_rl.policy.megatron.worker import MegatronPolicyWorker

    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, dtype="bfloat16", hidden_size=1024, intermediate_size=4096, num_hidden_layers=16)
    config = MasterConfig.model_validate(
        {
            "policy": {
                "model_name": str(folder),
                "max_total_sequence_length": 64,
                # A rank at which one float32 copy of the adapters, 137 MB, is already too much to be left behind.
                "megatron_cfg": {"peft": {"enabled": True, "dim": 128, "alpha": 128}},
            },
            "data": {"train": {"dataset_name": "tiny_max"}},
        }
    )
    worker = MegatronPolicyWorker(config, str(folder), 0, 1)
    worker.build(f"file://{tmp_path_factory.mktemp('rendezvous')}/file")
    yield worker
    worker.shutdown()


@pytest.fixture
def batch():
    mask_BT = torch.zeros(8, 64, dtype=torch.bool)
    mask_BT[:, 8:] = True
    return TrainBatch(
        token_ids_BT=torch.randint(10, 100, (8, 64)),
        lengths_B=torch.full((8,), 64),
        loss_mask_BT=mask_BT,
        sample_mask_B=torch.ones(8, dtype=torch.bool),
        advantages_B=torch.linspace(-1, 1, 8),
        generation_logprobs_BT=torch.zeros(8, 64),
        previous_logprobs_BT=torch.zeros(8, 64),
        reference_logprobs_BT=torch.zeros(8, 64),
    )


def test_offloaded_policy_holds_less_than_100_mib_and_comes_back_unchanged(worker, batch):
    worker.train([batch], make_loss(worker.config), Normalizer.of(batch.mask_BT))  # moments exist from here on
    before = worker.logprobs([batch])[0]
    resident = worker.memory_gib()["allocated"]
    worker.offload("before_sync")
    worker.offload("after_sync")
    assert worker.memory_gib()["allocated"] < 100 / 1024 < resident
    worker.onload()
    assert torch.equal(worker.logprobs([batch])[0], before)
    norms = [worker.train([batch], make_loss(worker.config), Normalizer.of(batch.mask_BT))["grad_norm"]]
    assert norms[0] > 0


def test_base_is_the_same_after_many_trips(worker, batch):
    fingerprint = worker.base_fingerprint()
    for _ in range(5):
        worker.offload("after_sync")
        worker.onload()
    assert worker.base_fingerprint() == fingerprint
