"""Which output layers the trainer may replace by a product of its own."""

from tests.unit.policy import jobs


def test_an_output_layer_that_bounds_its_logits_is_not_plain(pool):
    assert pool.run(1, jobs.plain_output_layers) == [{"ColumnParallelLinear": True, "Gemma2OutputLayer": False}]
