"""Which nodes the policy gets, which the engines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    assert divide_nodes(load_config(CONFIGS / "grpo_tiny_cpu_non_colocated.yaml", []), 0) == ([], [])
    assert pinned([{"CPU": 1.0}], []) == [{"CPU": 1.0}]


@pytest.mark.parametrize(("number", "own", "policy", "engines"), [(2, 1, [0], [1]), (4, 2, [0, 1], [2, 3])])
def test_generation_takes_the_last_nodes(
    monkeypatch: pytest.MonkeyPatch, number: int, own: int, policy: list[int], engines: list[int]
) -> None:
    monkeypatch.setattr(nodes, "alive_nodes", lambda gpus: FOUR)
    assert divide_nodes(config(number, own), 0) == ([FOUR[i] for i in policy], [FOUR[i] for i in engines])


def test_missing_nodes_are_counted_and_the_present_ones_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "alive_nodes", lambda gpus: FOUR[:1])
    with pytest.raises(ClusterError, match=r"cluster.num_nodes=2, but the Ray cluster has 1 nodes: 10.0.0.0"):
        divide_nodes(config(2, 1), 0)


def test_a_head_without_gpus_is_no_place_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(number: int, gpus: float) -> dict[str, Any]:
        resources = {"CPU": 8.0} | ({"GPU": gpus} if gpus else {})
        return {
            "NodeID": f"id{number}",
            "NodeManagerAddress": f"10.0.0.{number}",
            "Alive": True,
            "Resources": resources,
        }

    here = SimpleNamespace(get_node_id=lambda: "id0")
    monkeypatch.setattr(nodes.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(nodes.ray, "nodes", lambda: [node(2, 8.0), node(0, 0.0), node(1, 8.0), node(3, 4.0)])
    assert divide_nodes(config(2, 1), 8) == ([FOUR[1]], [FOUR[2]])
    with pytest.raises(
        ClusterError, match=r"num_nodes=4, but the Ray cluster has 2 nodes with 8 GPUs: 10.0.0.1, 10.0.0.2"
    ):
        divide_nodes(config(4, 2), 8)


def test_bundles_are_spread_in_equal_shares_in_order() -> None:
    places = [next(key for key in bundle if key != "CPU") for bundle in pinned([{"CPU": 1.0}] * 4, FOUR[:2])]
    assert places == ["node:10.0.0.0", "node:10.0.0.0", "node:10.0.0.1", "node:10.0.0.1"]
