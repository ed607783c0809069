"""Takes the policy off its GPU and puts it back, storage by storage, so that every view of it stays valid.

The frozen base has one pinned host copy, made once: dropping it costs nothing, bringing it back is one copy. Megatron's
own offloading moves only DDP buffers, which hold trainable parameters; with LoRA that leaves the base where it is.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from nemo_rl.policy.megatron.model import PolicyModel
from nemo_rl.policy.megatron.optimizer import Optimization

logger = logging.getLogger(__name__)


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    seen = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            yield storage


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


@dataclass
class ParkedTensors:
    """Tensors that can leave the device. `constant` ones are copied to the host only the first time; with
    `keep` False their values are not needed again and none is made."""

    tensors: Callable[[], Iterable[torch.Tensor]]
    constant: bool = False
    keep: bool = True
    parked: list[tuple[torch.UntypedStorage, int]] = field(default_factory=list)
    hosts: dict[int, torch.Tensor] = field(default_factory=dict)

    def park(self) -> None:
        if self.parked:
            return
        for storage in _storages(t for t in self.tensors() if t.is_cuda):
            size = storage.nbytes()
            if self.keep and not (self.constant and storage._cdata in self.hosts):
                host = self.hosts.get(storage._cdata)
                if host is None or host.numel() != size:
                    host = self.hosts[storage._cdata] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                host.copy_(_bytes(storage), non_blocking=True)
            self.parked.append((storage, size))
        torch.cuda.synchronize()
        for storage, _ in self.parked:
            storage.resize_(0)

    def unpark(self) -> None:
        for storage, size in self.parked:
            storage.resize_(size)
            if self.keep:
                _bytes(storage).copy_(self.hosts[storage._cdata], non_blocking=True)
            else:
                _bytes(storage).zero_()
        self.parked.clear()


class PolicyMemory:
    """The phases of a colocated step. On a CPU they only have names: host memory is shared as it is."""

    def __init__(self, model: PolicyModel, optimization: Optimization) -> None:
        buffers = [b for chunk in model.chunks for b in [*chunk.buffers, *chunk.expert_parallel_buffers]]
        parameters = [b.param_data for b in buffers if b.param_data is not None]
        trainable = parameters or list(model.trainable().values())
        held = {s._cdata for s in _storages([*trainable, *(b.grad_data for b in buffers)])}
        frozen = [*model.frozen().values(), *(buf for module in model.modules for buf in module.buffers())]
        self.base = ParkedTensors(lambda: frozen, constant=True)
        self.trainable = ParkedTensors(lambda: trainable)
        self.gradients = ParkedTensors(lambda: [b.grad_data for b in buffers], keep=False)
        self.optimizer = ParkedTensors(
            lambda: [t for t in optimizer_tensors(optimization) if t.untyped_storage()._cdata not in held]
        )
        self.on_device = True

    def offload(self, phase: str) -> None:
        """`before_sync` keeps what merging needs, the weights; `after_sync` keeps nothing."""
        self.on_device = self.on_device and phase != "after_sync"
        if not torch.cuda.is_available():
            return
        self.gradients.park()
        self.optimizer.park()
        if phase == "after_sync":
            self.base.park()
            self.trainable.park()
            _free_scratch()
        torch.cuda.empty_cache()

    def onload(self) -> None:
        """Everything back, for log-probabilities, training and checkpoints."""
        self.on_device = True
        if not torch.cuda.is_available():
            return
        for part in (self.base, self.trainable, self.gradients, self.optimizer):
            part.unpark()
        torch.cuda.synchronize()

    def require(self, what: str) -> None:
        """RuntimeError if the policy has left its devices (on a CPU: would have), where its tensors are empty."""
        if not self.on_device:
            raise RuntimeError(f"{what} needs the policy on its devices, which it has left to the engine")


def _free_scratch() -> None:
    """Matrix products leave 128 MiB of scratch space behind, kept by torch and by transformer-engine for the next ones,
    which make it again."""
    torch._C._cuda_clearCublasWorkspaces()
    gemm = sys.modules.get("transformer_engine.pytorch.cpp_extensions.gemm")
    if gemm is not None:
        gemm.get_cublas_workspace.cache_clear()


def optimizer_tensors(optimization: Optimization) -> Iterator[torch.Tensor]:
    """Moments and float32 masters of every inner torch optimizer."""
    outer = optimization.optimizer
    for megatron_optimizer in getattr(outer, "chained_optimizers", [outer]):
        inner = megatron_optimizer.optimizer
        if inner is None:
            continue
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
