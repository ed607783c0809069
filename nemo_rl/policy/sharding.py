"""Cuts a batch into the micro-batches of each data-parallel rank, by token count, and puts results back in order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nemo_rl.config.layout import ParallelLayout
from nemo_rl.config.schema import WorkerConfig
from nemo_rl.data.packing import balance_by_tokens, equalize_bins, pack_sequences
from nemo_rl.policy.interfaces import TrainBatch


@dataclass(frozen=True)
class CuttingRule:
    """How many sequences (padded) or tokens (packed) one micro-batch holds."""

    micro_batch_size: int
    packed_tokens: int | None
    algorithm: str = "modified_first_fit_decreasing"
    divisible_by: int = 1

    @classmethod
    def from_config(cls, config: WorkerConfig, layout: ParallelLayout, phase: str) -> "CuttingRule":
        """The rule of phase "train" or "logprob"."""
        policy = config.policy
        packing = policy.sequence_packing
        tokens = packing.train_mb_tokens if phase == "train" else packing.logprob_mb_tokens
        size = policy.train_micro_batch_size if phase == "train" else policy.logprob_batch_size
        multiple = math.lcm(policy.make_sequence_length_divisible_by, 2 * layout.cp if layout.cp > 1 else 1)
        return cls(size, tokens if packing.enabled else None, packing.algorithm, multiple)


@dataclass(frozen=True)
class Cut:
    """`micro_batches[rank]` lists the row indices of each micro-batch; every rank has equally many. An empty list
    is a filler, which takes part in collectives and adds nothing."""

    micro_batches: list[list[list[int]]]

    def rows_of(self, rank: int, batch: TrainBatch) -> list[TrainBatch]:
        return [batch.rows(torch.tensor(rows)) if rows else _filler(batch) for rows in self.micro_batches[rank]]

    def restore(self, results: Sequence[Sequence[torch.Tensor]], batch: TrainBatch) -> torch.Tensor:
        """Rows [b, t] of every rank's micro-batches -> [B, T] in the caller's order."""
        out = torch.zeros(batch.token_ids_BT.shape, dtype=torch.float32)
        for rank_rows, rank_results in zip(self.micro_batches, results, strict=True):
            for rows, values in zip(rank_rows, rank_results, strict=True):
                if rows:
                    out[torch.tensor(rows), : values.shape[1]] = values
        return out


def cut_batch(batch: TrainBatch, ranks: int, rule: CuttingRule) -> Cut:
    """Give each rank about the same number of tokens in the same number of micro-batches."""
    lengths = [-(-int(n) // rule.divisible_by) * rule.divisible_by for n in batch.lengths_B]
    shards = balance_by_tokens(lengths, ranks, equal_counts=rule.packed_tokens is None)
    if rule.packed_tokens is None:
        step = rule.micro_batch_size
        bins = [[shard[i : i + step] for i in range(0, len(shard), step)] for shard in shards]
    else:
        bins = [
            [
                [shard[i] for i in packed]
                for packed in pack_sequences([lengths[i] for i in shard], rule.packed_tokens, rule.algorithm)
            ]
            for shard in shards
        ]
    return Cut(equalize_bins(bins, lengths, multiple=1))


def _filler(batch: TrainBatch) -> TrainBatch:
    row = batch.rows(slice(0, 1))
    return replace(row, sample_mask_B=torch.zeros_like(row.sample_mask_B))
