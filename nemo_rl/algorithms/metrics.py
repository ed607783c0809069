"""Metrics as sums that can be added over micro-batches and ranks before anything is divided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_rl.algorithms.masking import masked_sum


class MetricLayout(NamedTuple):
    """Which entry of the reduced tensors is which metric; equal on every rank that ran the same loss."""

    means: tuple[str, ...]
    maxima: tuple[str, ...]
    minima: tuple[str, ...]


class MetricTensors(NamedTuple):
    """What ranks exchange, float64: all-reduce `sums` with SUM and `maxima` with MAX. Minima travel negated."""

    sums: Tensor
    maxima: Tensor


@dataclass(frozen=True)
class MetricSums:
    """Partial metrics: (sum, weight) of every mean, and the extremes, as 0-d float64 tensors.

    Nothing here waits for the device: values are read only by `finalize`.
    """

    means: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)
    minima: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_means(cls, values: Mapping[str, Tensor], mask: Tensor) -> "MetricSums":
        """Means over the entries where `mask` is True; every value has the mask's shape."""
        weight = mask.sum().double()
        return cls(means={name: (masked_sum(v.detach().double(), mask), weight) for name, v in values.items()})

    @classmethod
    def of_range(cls, name: str, values: Tensor, mask: Tensor) -> "MetricSums":
        """`name`_max and `name`_min over the entries where `mask` is True."""
        return cls.of_max(f"{name}_max", values, mask) | cls(minima={f"{name}_min": -_masked_max(-values, mask)})

    @classmethod
    def of_max(cls, name: str, values: Tensor, mask: Tensor) -> "MetricSums":
        return cls(maxima={name: _masked_max(values, mask)})

    def __or__(self, other: "MetricSums") -> "MetricSums":
        """Metrics of different names side by side."""
        return MetricSums(
            {**self.means, **other.means}, {**self.maxima, **other.maxima}, {**self.minima, **other.minima}
        )

    def merge(self, other: "MetricSums") -> "MetricSums":
        """The metrics of both parts together; a name that only one part has is taken over."""
        means = {**self.means, **other.means}
        for name in self.means.keys() & other.means.keys():
            (sum_a, weight_a), (sum_b, weight_b) = self.means[name], other.means[name]
            means[name] = (sum_a + sum_b, weight_a + weight_b)
        maxima, minima = {**self.maxima, **other.maxima}, {**self.minima, **other.minima}
        for name in self.maxima.keys() & other.maxima.keys():
            maxima[name] = torch.maximum(self.maxima[name], other.maxima[name])
        for name in self.minima.keys() & other.minima.keys():
            minima[name] = torch.minimum(self.minima[name], other.minima[name])
        return MetricSums(means, maxima, minima)

    @property
    def layout(self) -> MetricLayout:
        return MetricLayout(tuple(sorted(self.means)), tuple(sorted(self.maxima)), tuple(sorted(self.minima)))

    def to_tensors(self) -> MetricTensors:
        """The values in the order of `layout`: sums and weights alternate; then maxima, then negated minima."""
        layout = self.layout
        sums = [part for name in layout.means for part in self.means[name]]
        maxima = [self.maxima[name] for name in layout.maxima] + [-self.minima[name] for name in layout.minima]
        return MetricTensors(_stack(sums), _stack(maxima))

    @classmethod
    def from_tensors(cls, layout: MetricLayout, tensors: MetricTensors) -> "MetricSums":
        """The inverse of `to_tensors`, on whatever device the tensors are."""
        pairs = tensors.sums.view(-1, 2)
        split = len(layout.maxima)
        return cls(
            means={name: (pair[0], pair[1]) for name, pair in zip(layout.means, pairs, strict=True)},
            maxima=dict(zip(layout.maxima, tensors.maxima[:split], strict=True)),
            minima=dict(zip(layout.minima, -tensors.maxima[split:], strict=True)),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes metrics travel as plain numbers: a pickled tensor of a Megatron process names Megatron's
        own loader, and whoever reads it would have to import Megatron."""
        tensors = self.to_tensors()
        return _from_numbers, (self.layout, tensors.sums.tolist(), tensors.maxima.tolist())

    def to_host(self) -> "MetricSums":
        """The same metrics on the CPU, in two copies."""
        tensors = self.to_tensors()
        return MetricSums.from_tensors(self.layout, MetricTensors(tensors.sums.cpu(), tensors.maxima.cpu()))

    def finalize(self) -> dict[str, float]:
        """Sum / weight of every mean and the extremes, as floats; a metric that no entry contributed to is absent."""
        local = self.to_host()
        result = {name: float(total / weight) for name, (total, weight) in local.means.items() if weight > 0}
        extremes = {**local.maxima, **local.minima}
        return result | {name: float(value) for name, value in extremes.items() if not _is_empty(name, value, local)}


def _from_numbers(layout: MetricLayout, sums: list[float], maxima: list[float]) -> MetricSums:
    tensors = MetricTensors(torch.tensor(sums, dtype=torch.float64), torch.tensor(maxima, dtype=torch.float64))
    return MetricSums.from_tensors(layout, tensors)


def _masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """The largest selected value as a 0-d float64 tensor; -inf where nothing is selected."""
    lowest = torch.tensor(float("-inf"), dtype=torch.float64, device=values.device)
    return torch.cat([torch.where(mask, values.detach().double(), lowest).flatten(), lowest[None]]).max()


def _stack(values: list[Tensor]) -> Tensor:
    return torch.stack(values) if values else torch.zeros(0, dtype=torch.float64)


def _is_empty(name: str, value: Tensor, metrics: MetricSums) -> bool:
    return bool(value == (float("-inf") if name in metrics.maxima else float("inf")))
