"""Where an actor runs."""

from typing import Any

import ray


def place_of_this_actor() -> dict[str, Any]:
    return {"node_id": ray.get_runtime_context().get_node_id(), "ip": ray.util.get_node_ip_address()}
