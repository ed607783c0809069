"""What rank processes do for the tests: build the real worker (without Ray), measure, return plain tensors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nemo_rl.algorithms.losses import Loss, Normalizer
from nemo_rl.algorithms.settings import make_loss
from nemo_rl.config.layout import ParallelLayout
from nemo_rl.config.loader import load_config
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.policy.sharding import CuttingRule, cut_batch
from tests.unit.policy.ranks import Place

CONFIG = Path(__file__).parents[3] / "examples/configs/grpo_tiny_cpu.yaml"
MEGATRON, PEFT = "policy.megatron_cfg", "policy.megatron_cfg.peft"
BASICS = (
    "policy.train_global_batch_size=8",
    "policy.train_micro_batch_size=2",
    "policy.max_grad_norm=0",
    f"{PEFT}.lora_B_init_method=xavier",
    f"{PEFT}.dim=8",
    f"{MEGATRON}.optimizer.lr=1e-3",
    f"{MEGATRON}.optimizer.adam_eps=1e-3",  # the default amplifies rounding where a gradient is nearly zero
    f"{MEGATRON}.optimizer.use_distributed_optimizer=false",
    f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather=false",
    f"{MEGATRON}.scheduler.lr_warmup_iters=0",
    "loss_fn.reference_policy_kl_penalty=0.1",
)


class Shard(NamedTuple):
    """One rank's piece of a parameter: `cut` is (dimension, pieces, this piece), None if whole."""

    value: torch.Tensor
    cut: tuple[int, int, int] | None


def build(place: Place, model: str, overrides: Sequence[str]) -> Any:
    """The worker of this rank, ready to train."""
    from nemo_rl.policy.megatron.worker import MegatronPolicyWorker

    torch.set_num_threads(1)
    config = load_config(CONFIG, [*BASICS, f"cluster.gpus_per_node={place.world}", *overrides])
    worker = MegatronPolicyWorker(config, model, place.rank, place.world)
    worker.build(place.rendezvous)
    torch.set_num_threads(1)
    return worker


def share(worker: Any, batch: TrainBatch, phase: str) -> list[TrainBatch]:
    """This rank's micro-batches, cut as the driver cuts them."""
    from megatron.core import parallel_state

    layout = ParallelLayout.from_config(worker.config)
    cut = cut_batch(batch, layout.dp, CuttingRule.from_config(worker.config, layout, phase))
    return cut.rows_of(parallel_state.get_data_parallel_rank(), batch)


def logprobs(worker: Any, batch: TrainBatch, reference: bool = False) -> torch.Tensor | None:
    """[B, T] of the rows that this data-parallel rank had, NaN elsewhere; None off the last stage."""
    from megatron.core import parallel_state

    layout = ParallelLayout.from_config(worker.config)
    cut = cut_batch(batch, layout.dp, CuttingRule.from_config(worker.config, layout, "logprob"))
    rank = parallel_state.get_data_parallel_rank()
    results = worker.logprobs(cut.rows_of(rank, batch), reference)
    if not results:
        return None
    out = torch.full(batch.token_ids_BT.shape, float("nan"))
    for rows, values in zip(cut.micro_batches[rank], results, strict=True):
        for row, value in zip(rows, values, strict=False):
            out[row, : value.shape[0]] = value
            out[row, value.shape[0] :] = 0
    return out


def train(worker: Any, batch: TrainBatch, loss: Loss | None = None) -> dict[str, float]:
    reply = worker.train(share(worker, batch, "train"), loss or make_loss(worker.config), Normalizer.of(batch.mask_BT))
    sums = reply.pop("sums")
    highest = max((float(s.maxima["probs_ratio_max"]) for s in sums), default=0.0)
    return {
        **reply,
        "loss": sum(float(s.means["loss"][0]) for s in sums),
        "highest_ratio": highest,
        "reports": len(sums),
    }


def shards(worker: Any, what: str = "value") -> dict[str, Shard]:
    """This rank's trainable parameters (or their gradients) under their global names."""
    from nemo_rl.policy.megatron.lora import global_name
    from nemo_rl.policy.megatron.shards import cut_of

    model = worker.model
    found = {}
    for chunk, module in enumerate(model.modules):
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                whole = global_name(model.modules, name, chunk)
                cut = cut_of(whole, parameter, gated_linear_unit=False)
                tensor = parameter if what == "value" else parameter.main_grad
                found[whole] = Shard(tensor.detach().clone(), cut and cut[:3])
    return found


def exported(worker: Any) -> dict[str, torch.Tensor]:
    from nemo_rl.policy.megatron.export import merged_weights

    return {name: tensor.detach().clone() for name, tensor in merged_weights(worker.model)}


def live_logprobs(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch) -> torch.Tensor | None:
    return logprobs(build(place, model, overrides), batch)


def measure(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, steps: int = 1) -> dict[str, Any]:
    """Everything about one layout: values at the start, log-probabilities, export, loss, gradients, values after."""
    worker = build(place, model, overrides)
    before = worker.base_fingerprint()
    report: dict[str, Any] = {
        "start": shards(worker),
        "logprobs": logprobs(worker, batch),
        "reference": logprobs(worker, batch, reference=True),
        "export": exported(worker) if place.rank == 0 else (exported(worker), None)[1],
        "retention": worker.merge_retention(),
    }
    report["first"] = train(worker, batch)
    report["gradients"] = shards(worker, "gradient")
    report["after"] = shards(worker)
    report["more"] = [train(worker, batch) for _ in range(steps - 1)]
    report["final"] = shards(worker)
    report["fingerprints"] = (before, worker.base_fingerprint())
    return report


def plain_output_layers(place: Place) -> dict[str, bool]:
    """Which classes of output layers are taken for bare linears."""
    from megatron.bridge.models.gemma.gemma2_provider import Gemma2OutputLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear

    from nemo_rl.policy.megatron.head import is_plain

    found = {}
    for layer in (ColumnParallelLinear, Gemma2OutputLayer):
        module = torch.nn.Module()
        module.__class__ = layer
        found[layer.__name__] = is_plain(module)
    return found
