"""Which nodes of the cluster do what. On one node Ray's own packing is enough; on several, workers are pinned."""

from dataclasses import dataclass

import ray

from nemo_rl.config.schema import EngineConfig
from nemo_rl.distributed.cluster import ClusterError

Bundle = dict[str, float]
_PIN = 0.001
"""A little of the resource that Ray gives to each node by its address."""


@dataclass(frozen=True)
class Node:
    node_id: str
    ip: str


def alive_nodes(gpus: int) -> list[Node]:
    """Nodes with so many GPUs (a cluster's head may have none): the driver's first, the others by address."""
    here = ray.get_runtime_context().get_node_id()
    nodes = [
        Node(node["NodeID"], node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU", 0) >= gpus
    ]
    return sorted(nodes, key=lambda node: (node.node_id != here, node.ip))


def divide_nodes(config: EngineConfig, gpus_per_node: int) -> tuple[list[Node], list[Node]]:
    """Nodes of the policy and of the engines; both empty on one node, the same when colocated."""
    wanted, colocated = config.cluster.num_nodes, config.policy.generation.colocated
    if wanted == 1:
        return [], []
    nodes = alive_nodes(gpus_per_node)
    if len(nodes) < wanted:
        with_gpus = f" with {gpus_per_node} GPUs" if gpus_per_node else ""
        raise ClusterError(
            f"cluster.num_nodes={wanted}, but the Ray cluster has {len(nodes)} nodes{with_gpus}: "
            f"{', '.join(node.ip for node in nodes) or 'none'}"
        )
    nodes = nodes[:wanted]
    if colocated.enabled:
        return nodes, nodes
    own = colocated.resources.num_nodes or 0
    return nodes[: wanted - own], nodes[wanted - own :]


def pinned(bundles: list[Bundle], nodes: list[Node]) -> list[Bundle]:
    """The bundles in equal shares on the nodes, in order."""
    if not nodes:
        return bundles
    share = -(-len(bundles) // len(nodes))
    return [bundle | {f"node:{nodes[place // share].ip}": _PIN} for place, bundle in enumerate(bundles)]
