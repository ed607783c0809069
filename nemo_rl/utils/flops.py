"""Floating-point operations of a LoRA or full training step, and how much of the device they use."""

from collections.abc import Sequence
from dataclasses import dataclass

PEAK_BF16_FLOPS = {
    "H100": 989.5e12,
    "H200": 989.5e12,
    "A100": 312e12,
    "B200": 2250e12,
    "GB200": 2250e12,
    "L40S": 362e12,
}
"""Dense bf16 peak by substring of the device's name, from the vendor's data sheets."""


@dataclass(frozen=True)
class TrainingFlops:
    """Counts what a step really computes: a frozen weight costs 2 FLOPs per token forward and 2 backward (its input's
    gradient), a trainable one 2 more for its own gradient. Attention scores are counted causally."""

    frozen: int
    trainable: int
    layers: int
    attention_width: int
    recompute: bool
    device: str | None

    def step_flops(self, lengths: Sequence[int]) -> float:
        """FLOPs of forward and backward over sequences of these lengths."""
        tokens = sum(lengths)
        forward = 2.0 * (self.frozen + self.trainable) * tokens
        attention = sum(2.0 * self.layers * self.attention_width * n * n for n in lengths)
        backward = (2.0 * self.frozen + 4.0 * self.trainable) * tokens
        again = forward + attention if self.recompute else 0.0
        return forward + backward + 3.0 * attention + again

    def utilization(self, lengths: Sequence[int], seconds: float, devices: int) -> dict[str, float]:
        """train_flops_per_gpu, and train_fp_utilization where the device's peak is known."""
        rate = self.step_flops(lengths) / seconds / devices
        peak = next((p for name, p in PEAK_BF16_FLOPS.items() if self.device and name in self.device), None)
        return {"train_flops_per_gpu": rate} | ({"train_fp_utilization": rate / peak} if peak else {})
