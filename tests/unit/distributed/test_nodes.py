"""Which nodes the policy gets, which the engines."""

from pathlib import Path

import pytest

from nemo_rl.config.loader import load_config
from nemo_rl.config.schema import MasterConfig
from nemo_rl.distributed import nodes
from nemo_rl.distributed.cluster import ClusterError
from nemo_rl.distributed.nodes import Node, divide_nodes, pinned

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
FOUR = [Node(f"id{i}", f"10.0.0.{i}") for i in range(4)]


def config(number: int, own: int) -> MasterConfig:
    changes = [f"cluster.num_nodes={number}", f"policy.generation.colocated.resources.num_nodes={own}"]
    changes += ["policy.generation.colocated.resources.gpus_per_node=2", "policy.train_micro_batch_size=16"]
    return load_config(CONFIGS / "grpo_tiny_cpu_non_colocated.yaml", changes)


def test_one_node_needs_no_pins() -> None:
    assert divide_nodes(load_config(CONFIGS / "grpo_tiny_cpu_non_colocated.yaml", [])) == ([], [])
    assert pinned([{"CPU": 1.0}], []) == [{"CPU": 1.0}]


@pytest.mark.parametrize(("number", "own", "policy", "engines"), [(2, 1, [0], [1]), (4, 2, [0, 1], [2, 3])])
def test_generation_takes_the_last_nodes(
    monkeypatch: pytest.MonkeyPatch, number: int, own: int, policy: list[int], engines: list[int]
) -> None:
    monkeypatch.setattr(nodes, "alive_nodes", lambda: FOUR)
    assert divide_nodes(config(number, own)) == ([FOUR[i] for i in policy], [FOUR[i] for i in engines])


def test_missing_nodes_are_counted_and_the_present_ones_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "alive_nodes", lambda: FOUR[:1])
    with pytest.raises(ClusterError, match=r"cluster.num_nodes=2, but the Ray cluster has 1 nodes: 10.0.0.0"):
        divide_nodes(config(2, 1))


def test_bundles_are_spread_in_equal_shares_in_order() -> None:
    places = [next(key for key in bundle if key != "CPU") for bundle in pinned([{"CPU": 1.0}] * 4, FOUR[:2])]
    assert places == ["node:10.0.0.0", "node:10.0.0.0", "node:10.0.0.1", "node:10.0.0.1"]
