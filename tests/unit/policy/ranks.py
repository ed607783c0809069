"""A pool of rank processes for tests: Megatron is imported once per process, then any layout is built in them.

Every job joins fresh process groups through a rendezvous file over gloo and leaves them again. A job that fails or
overruns its deadline ends all processes if any of its ranks stays silent: it may wait for another in a collective.
"""

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

GRACE_S = 20.0


@dataclass(frozen=True)
class Place:
    """What one rank of a job knows about the job."""

    rank: int
    world: int
    rendezvous: str


class RankFailure(RuntimeError):
    """A rank raised; the message is its traceback."""


class RankPool:
    """Runs module-level functions `job(place, *args)` on the ranks of a world, in processes that are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = 0
        self.processes: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def run(
        self, world: int, job: Callable[..., Any], *args: Any, first: int = 0, deadline_s: float = 150.0
    ) -> list[Any]:
        """Results in rank order. `first` picks which processes serve: one that has no memory of an earlier job."""
        while len(self.processes) < first + world:
            self._start_one()
        self.jobs += 1
        rendezvous = f"file://{self.folder}/rendezvous-{os.getpid()}-{self.jobs}"
        serving = self.processes[first : first + world]
        for rank, (_, connection) in enumerate(serving):
            connection.send_bytes(pickle.dumps((job, Place(rank, world, rendezvous), args)))
        return self._collect([connection for _, connection in serving], time.monotonic() + deadline_s)

    def _collect(self, connections: list[Connection], deadline: float) -> list[Any]:
        replies: dict[int, tuple[str | None, Any]] = {}
        while len(replies) < len(connections):
            waiting = [c for rank, c in enumerate(connections) if rank not in replies]
            ready = multiprocessing.connection.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = connections.index(connection)
                try:
                    replies[rank] = pickle.loads(connection.recv_bytes())
                except EOFError:
                    replies[rank] = ("the process ended", None)
                if replies[rank][0] is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        errors = [f"rank {rank}: {error}" for rank, (error, _) in sorted(replies.items()) if error is not None]
        silent = sorted(set(range(len(connections))) - set(replies))
        if silent or "the process ended" in str(errors):
            self.close()
        if errors:
            raise RankFailure("\n".join(errors))
        if silent:
            raise TimeoutError(f"ranks {silent} did not answer in time")
        return [replies[rank][1] for rank in range(len(connections))]

    def _start_one(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self.folder / f"rank-process-{len(self.processes)}.log"), daemon=True
        )
        process.start()
        theirs.close()
        self.processes.append((process, ours))

    def close(self) -> None:
        for process, connection in self.processes:
            connection.close()
            process.kill()
            process.join()
        self.processes = []


def _serve(connection: Connection, log: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with log.open("w") as file:  # Megatron says much
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from nemo_rl.policy.megatron.cpu_shim import install

    install()
    while True:
        try:
            job, place, args = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        for name in [name for name in os.environ if name.startswith("NVTE_")]:
            del os.environ[name]  # Megatron sets them per model and refuses another model's
        try:
            reply = pickle.dumps((None, job(place, *args)))
        except BaseException:  # torch has one for checkpoints that is no Exception
            reply = pickle.dumps((traceback.format_exc(), None))
        _leave_groups()
        connection.send_bytes(reply)


def _leave_groups() -> None:
    import torch
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
