import math

import pytest
import torch

from nemo_rl.algorithms.metrics import MetricSums, MetricTensors

VALUES = torch.tensor([1.0, 2.0, 6.0, math.nan])
MASK = torch.tensor([True, True, True, False])


def metrics_of(values: torch.Tensor, mask: torch.Tensor) -> MetricSums:
    means = MetricSums.of_means({"mean": values, "twice": 2 * values}, mask)
    return means | MetricSums.of_range("range", values, mask) | MetricSums.of_max("largest", values, mask)


def test_means_and_extremes_over_the_mask():
    assert metrics_of(VALUES, MASK).finalize() == {
        "mean": 3.0,
        "twice": 6.0,
        "range_max": 6.0,
        "range_min": 1.0,
        "largest": 6.0,
    }


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_merging_parts_gives_the_whole(cut):
    first, second = metrics_of(VALUES[:cut], MASK[:cut]), metrics_of(VALUES[cut:], MASK[cut:])
    assert first.merge(second).finalize() == metrics_of(VALUES, MASK).finalize()
    assert second.merge(first).finalize() == metrics_of(VALUES, MASK).finalize()


def test_names_of_only_one_part_are_kept():
    merged = MetricSums.of_means({"a": VALUES}, MASK).merge(MetricSums.of_max("b", VALUES, MASK))
    assert merged.finalize() == {"a": 3.0, "b": 6.0}
    assert MetricSums().merge(merged).finalize() == merged.finalize()


def test_metric_of_nothing_is_absent():
    assert metrics_of(VALUES, torch.zeros(4, dtype=torch.bool)).finalize() == {}
    assert MetricSums().finalize() == {}


def test_a_nan_among_the_valid_values_shows():
    finalized = metrics_of(VALUES, torch.ones(4, dtype=torch.bool)).finalize()
    assert math.isnan(finalized["mean"])
    assert math.isnan(finalized["range_max"])


def test_all_reducing_the_tensors_equals_merging():
    parts = [metrics_of(VALUES[:1], MASK[:1]), metrics_of(VALUES[1:], MASK[1:])]
    assert parts[0].layout == parts[1].layout
    tensors = [part.to_tensors() for part in parts]
    reduced = MetricTensors(
        sums=tensors[0].sums + tensors[1].sums, maxima=torch.maximum(tensors[0].maxima, tensors[1].maxima)
    )
    restored = MetricSums.from_tensors(parts[0].layout, reduced)
    assert restored.finalize() == metrics_of(VALUES, MASK).finalize()


def test_layout_does_not_depend_on_insertion_order():
    forward = MetricSums.of_means({"a": VALUES, "b": 2 * VALUES}, MASK)
    backward = MetricSums.of_means({"b": 2 * VALUES, "a": VALUES}, MASK)
    assert forward.layout == backward.layout
    assert torch.equal(forward.to_tensors().sums, backward.to_tensors().sums)


def test_sums_do_not_lose_small_values_to_large_counts():
    values = torch.full((1 << 20,), 0.1)
    mean = MetricSums.of_means({"mean": values}, torch.ones_like(values, dtype=torch.bool)).finalize()["mean"]
    assert mean == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)
