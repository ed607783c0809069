"""The trainer as the driver sees it: one handle over one Ray actor per rank."""

import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch

from nemo_rl.algorithms.losses import Loss, Normalizer
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.config.layout import ParallelLayout
from nemo_rl.config.schema import WorkerConfig
from nemo_rl.distributed.calls import gather
from nemo_rl.distributed.placement import Placement
from nemo_rl.distributed.ranks import places, reporters
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.policy.megatron.worker import MegatronPolicyWorker
from nemo_rl.policy.sharding import Cut, CuttingRule, cut_batch

logger = logging.getLogger(__name__)

START_DEADLINE_S = 1800.0
STEP_DEADLINE_S = 3600.0


class Policy:
    """Trains, scores and exports the policy. Batches are sharded over the data-parallel axis by token count and come
    back in the caller's order."""

    def __init__(self, config: WorkerConfig, model_path: str, placement: Placement) -> None:
        self.config = config
        self.layout = ParallelLayout.from_config(config)
        self.reporters = reporters(self.layout)
        self.workers = [
            placement.actor(MegatronPolicyWorker, place.rank, f"policy {place.rank}").remote(
                config, model_path, place.rank, self.layout.world
            )
            for place in places(self.layout)
        ]
        self.parameters: dict[str, int] = {}
        self.nodes: list[dict[str, Any]] = []
        self.rendezvous_file: Path | None = None

    def place(self) -> None:
        """Wait until every rank has its process, and learn where it is; begin importing there."""
        self.nodes = gather([w.node.remote() for w in self.workers], "placing the policy", START_DEADLINE_S)
        for worker in self.workers:
            worker.prepare.remote()

    def start(self) -> list[Any]:
        """Begin building on all ranks; returns the calls to wait for with `started`."""
        nodes = self.nodes
        if len({node["node_id"] for node in nodes}) == 1:
            handle, path = tempfile.mkstemp(prefix="nemo_rl-rendezvous-")
            os.close(handle)
            os.unlink(path)
            self.rendezvous_file = Path(path)
            rendezvous = f"file://{path}"
        else:
            port = gather([self.workers[0].open_store.remote()], "opening the policy's rendezvous", 60.0)[0]
            rendezvous = f"{nodes[0]['ip']}:{port}"
        return [w.build.remote(rendezvous) for w in self.workers]

    def started(self, building: Sequence[Any]) -> None:
        reports = gather(building, "building the policy", START_DEADLINE_S)
        self.parameters = reports[0]
        total, trained = self.parameters["total"], self.parameters["trainable"]
        logger.info(
            "policy ready: %s parameters a rank, %s of them trained (%.3g %%)",
            f"{total:,}",
            f"{trained:,}",
            100 * trained / total,
        )

    def call(self, method: str, *args: Any, deadline_s: float = STEP_DEADLINE_S) -> list[Any]:
        """The same call on every rank; results in rank order."""
        calls = [getattr(worker, method).remote(*args) for worker in self.workers]
        return gather(calls, f"policy.{method}", deadline_s, self.names)

    @property
    def names(self) -> list[str]:
        """What messages call each rank."""
        return [f"policy rank {rank} on {node['ip']}" for rank, node in enumerate(self.nodes)]

    def train(self, batch: TrainBatch, loss: Loss) -> tuple[MetricSums, list[dict[str, float]]]:
        """`B / train_global_batch_size` optimizer steps over the rows in order.

        Returns metric sums over the whole batch and, per optimizer step, grad_norm, lr and wd.
        """
        size = self.config.policy.train_global_batch_size
        sums, steps = MetricSums(), []
        for first in range(0, batch.size, size):
            rows = batch.rows(slice(first, first + size))
            normalizer = Normalizer.of(rows.mask_BT)
            cut = cut_batch(rows, self.layout.dp, CuttingRule.from_config(self.config, self.layout, "train"))
            calls = self._per_rank("train", cut, rows, loss, normalizer)
            replies = gather(calls, "policy.train", STEP_DEADLINE_S, self.names)
            for place in self.reporters:
                for part in replies[place.rank]["sums"]:
                    sums = sums.merge(part)
            steps.append({key: replies[0][key] for key in ("grad_norm", "lr", "wd")})
        return sums, steps

    def logprobs(self, batch: TrainBatch) -> torch.Tensor:
        """Log-probabilities of the batch's tokens under the live policy at the sampling temperature, [B, T]."""
        return self._logprobs(batch, reference=False)

    def reference_logprobs(self, batch: TrainBatch) -> torch.Tensor:
        """The same under the reference policy: adapters off, or the weights of the run's start."""
        return self._logprobs(batch, reference=True)

    def _logprobs(self, batch: TrainBatch, reference: bool) -> torch.Tensor:
        cut = cut_batch(batch, self.layout.dp, CuttingRule.from_config(self.config, self.layout, "logprob"))
        replies = gather(self._per_rank("logprob_arrays", cut, batch, reference), "policy.logprobs", STEP_DEADLINE_S)
        parts = [[torch.tensor(array) for array in replies[place.rank]] for place in self.reporters]
        return cut.restore(parts, batch)

    def _per_rank(self, method: str, cut: Cut, batch: TrainBatch, *args: Any) -> list[Any]:
        shares = [ray.put(cut.rows_of(dp, batch)) for dp in range(self.layout.dp)]
        return [
            getattr(self.workers[place.rank], method).remote(shares[place.dp], *args) for place in places(self.layout)
        ]

    def offload(self, phase: str) -> None:
        self.call("offload", phase)

    def onload(self) -> None:
        self.call("onload")

    def save(self, folder: Path) -> None:
        self.call("save", str(folder))

    def load(self, folder: Path) -> None:
        self.call("load", str(folder))

    def load_weights(self, folder: Path) -> None:
        """The trainable weights of a checkpoint; optimizer, schedule and random state stay as they are."""
        self.call("load_weights", str(folder))

    def shutdown(self) -> None:
        """End all ranks; safe to call twice and after a failure."""
        calls = [w.shutdown.remote() for w in self.workers]
        ray.wait(calls, num_returns=len(calls), timeout=30)
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        if self.rendezvous_file is not None:
            self.rendezvous_file.unlink(missing_ok=True)
