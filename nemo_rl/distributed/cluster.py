"""Ray: attach to a cluster or start a local one, and reserve places for workers."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from nemo_rl.config.schema import ClusterConfig
from nemo_rl.distributed.session_folder import session_folder
from nemo_rl.errors import UserError, first_line

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the machine's outward address; this one is loopback too, and left alone."""


class ClusterError(UserError, RuntimeError):
    """The cluster cannot give what the configuration asks for."""


def cluster_address(cluster: ClusterConfig) -> str | None:
    """Where to attach; None is a local session. ClusterError for several nodes without an address."""
    address = cluster.ray_address or os.environ.get("RAY_ADDRESS")
    if address is None and cluster.num_nodes > 1:
        raise ClusterError(
            f"cluster.num_nodes={cluster.num_nodes} needs a running Ray cluster: start `ray start --head` and "
            "`ray start --address=...` on the nodes and set cluster.ray_address"
        )
    return address


@contextmanager
def ray_cluster(cluster: ClusterConfig, *, workers: int, gpus: int, logs_to: Path | None = None) -> Iterator[None]:
    """A Ray session for the length of a run.

    With `cluster.ray_address` (or RAY_ADDRESS) it attaches and leaves the cluster as it was. Otherwise a local one is
    started on the loopback interface with its own temporary folder, and is gone afterwards, whatever happened; of a
    run that failed, what its workers wrote is kept in `logs_to`.
    """
    address = cluster_address(cluster)
    common = {"log_to_driver": False, "configure_logging": False, "namespace": "nemo_rl"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers choose their device by CUDA_VISIBLE_DEVICES even when they ask Ray for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is not None:
        try:
            ray.init(address=address, **common)
        except (ConnectionError, ValueError) as error:
            raise ClusterError(
                f"no Ray cluster answers at {address} (cluster.ray_address or RAY_ADDRESS): {first_line(error)}"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()
        return
    # Ray would start a Python process for every core before anyone asks for one.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    with session_folder() as folder:
        ray.init(
            num_cpus=max(os.cpu_count() or 1, workers * cluster.cpus_per_worker + 2),
            num_gpus=gpus,
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(folder),
            object_store_memory=_object_store_bytes(),
            **common,
        )
        try:
            yield
        except BaseException:
            if logs_to is not None:
                _keep_worker_logs(folder, logs_to)
            raise
        finally:
            ray.shutdown()


def _keep_worker_logs(session: Path, target: Path) -> None:
    """Copy what workers wrote, leaving out the many that wrote nothing."""
    written = [path for path in session.glob("session_2*/logs/worker-*.*") if path.stat().st_size]
    target.mkdir(parents=True, exist_ok=True)
    for path in written:
        shutil.copy(path, target / path.name)
    logger.error("what %d workers wrote before the failure is in %s", len(written), target)


def _object_store_bytes() -> int:
    """Rollouts are small: at most 2 GiB, and no more than half of the shared memory there is."""
    free = shutil.disk_usage("/dev/shm").free
    return max(min(2 << 30, free // 2), 80 << 20)


@contextmanager
def reserve(
    bundles: list[dict[str, float]], strategy: str, what: str, deadline_s: float = 180.0
) -> Iterator[PlacementGroup]:
    """A placement group of these bundles; ClusterError naming what is missing if it cannot be placed in time."""
    group = placement_group(bundles, strategy=strategy)
    try:
        ready, _ = ray.wait([group.ready()], timeout=deadline_s)
        if not ready:
            total = {key: sum(b.get(key, 0) for b in bundles) for key in ("CPU", "GPU")}
            all_, free = ray.cluster_resources(), ray.available_resources()
            raise ClusterError(
                f"no place for {what} within {deadline_s:.0f} s: it needs {len(bundles)} bundles, "
                f"{total['GPU']:g} GPUs and {total['CPU']:g} CPUs; the cluster has {all_} and free {free}"
            )
        yield group
    finally:
        if ray.is_initialized():
            remove_placement_group(group)
