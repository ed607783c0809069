"""The training ranks' default process group: NCCL on GPUs, gloo on CPUs."""

import os
from datetime import timedelta

import torch

TIMEOUT = timedelta(minutes=10)


def join_training_ranks(
    rendezvous: str,
    rank: int,
    world: int,
    store: torch.distributed.Store | None,
    *,
    share_cores: bool = False,
    one_node: bool = True,
) -> None:
    """Initialise torch.distributed for this rank.

    `rendezvous` is "file://..." on one node, which opens no port, or "host:port" of the store that rank 0 serves. With
    `share_cores`, on a CPU, half of the cores are left to engines: threads that wait for a core in the midst of a
    matrix product hold up all others. `one_node`: not only these ranks, but all that the run talks to are on this node.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // (2 * world if share_cores else world)))
    if rendezvous.startswith("file://"):
        if backend == "gloo":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        elif one_node:
            # NCCL reads this once in a process: the group that weights travel in to engines elsewhere would use it too.
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            backend, init_method=rendezvous, rank=rank, world_size=world, timeout=TIMEOUT
        )
        return
    host, _, port = rendezvous.rpartition(":")
    if store is None:
        store = torch.distributed.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
