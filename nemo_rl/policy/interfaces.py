"""What the trainer is given: one padded batch of CPU tensors, and what comes back."""

from dataclasses import dataclass, fields, replace

import torch


@dataclass(frozen=True)
class TrainBatch:
    """B sequences, right-padded to T tokens. Column t of a log-probability is that of token t given tokens < t.

    `loss_mask_BT` is True for tokens that the model sampled and that count; `sample_mask_B` False drops a whole
    sequence from the loss. Log-probabilities are 0 where the mask is False; all are taken at the sampling temperature.
    """

    token_ids_BT: torch.Tensor
    lengths_B: torch.Tensor
    loss_mask_BT: torch.Tensor
    sample_mask_B: torch.Tensor
    advantages_B: torch.Tensor
    generation_logprobs_BT: torch.Tensor
    previous_logprobs_BT: torch.Tensor | None = None
    reference_logprobs_BT: torch.Tensor | None = None

    @property
    def size(self) -> int:
        return self.token_ids_BT.shape[0]

    @property
    def mask_BT(self) -> torch.Tensor:
        """Tokens that enter the loss: sampled, and of a sequence that counts. Bool [B, T]."""
        return self.loss_mask_BT & self.sample_mask_B[:, None]

    def rows(self, index: torch.Tensor | slice) -> "TrainBatch":
        """The batch restricted to some rows, cut to their longest sequence."""
        picked = {f.name: value[index] for f in fields(self) if (value := getattr(self, f.name)) is not None}
        longest = int(picked["lengths_B"].max()) if picked["lengths_B"].numel() else 0
        return TrainBatch(**{k: v[:, :longest] if k.endswith("_BT") else v for k, v in picked.items()})

    def to(self, device: torch.device) -> "TrainBatch":
        present = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return TrainBatch(**{name: value.to(device) for name, value in present.items()})

    def with_advantages(self, advantages_B: torch.Tensor, valid_B: torch.Tensor) -> "TrainBatch":
        """Set the advantages; rows whose reward was not valid no longer count."""
        return replace(self, advantages_B=advantages_B, sample_mask_B=self.sample_mask_B & valid_B)

    def with_logprobs(self, previous: torch.Tensor | None, reference: torch.Tensor | None) -> "TrainBatch":
        return replace(self, previous_logprobs_BT=previous, reference_logprobs_BT=reference)
