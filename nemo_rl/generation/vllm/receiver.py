"""Runs inside every vLLM worker: takes weight buckets and loads them into the model, in place.

vLLM imports this module by `worker_extension_cls` before the model is loaded, which is when the weight-transfer
engine registers itself. It is vLLM's own interface; nothing of vLLM is replaced.
"""

import ctypes
import importlib
import multiprocessing
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.platforms import current_platform

from nemo_rl.generation.vllm.experts import ExpertReload
from nemo_rl.utils.process_memory import memory_gib
from nemo_rl.weight_sync.checksum import checksums
from nemo_rl.weight_sync.interfaces import Bucket, BucketReceiver, TensorEntry, WeightSyncError, tensors_of

BACKEND = "nemo_rl"
_PR_SET_PDEATHSIG = 1


@dataclass
class ReceiverInit(WeightTransferInitInfo):
    """`factory` is "module:function" and makes the BucketReceiver from `settings` and this worker's rank and device."""

    factory: str
    settings: dict[str, Any]


@dataclass
class BucketUpdate(WeightTransferUpdateInfo):
    """A `Bucket` as plain values. `verify_only` compares what the model holds instead of loading."""

    version: int
    index: int
    entries: list[Any]
    nbytes: int
    handles: dict[str, Any]
    checksums: bool
    verify_only: bool = False

    def bucket(self) -> Bucket:
        entries = tuple(TensorEntry(e[0], e[1], tuple(e[2]), *e[3:]) for e in self.entries)
        return Bucket(self.version, self.index, entries, self.nbytes, self.handles)


def update_info(bucket: Bucket, checksums: bool, verify_only: bool) -> dict[str, Any]:
    """The plain form of a bucket that vLLM passes to its workers."""
    entries = [[e.name, e.dtype, list(e.shape), e.offset, e.nbytes, e.checksum] for e in bucket.entries]
    return {
        "version": bucket.version,
        "index": bucket.index,
        "entries": entries,
        "nbytes": bucket.nbytes,
        "handles": bucket.handles,
        "checksums": checksums,
        "verify_only": verify_only,
    }


class BucketWeightTransfer(WeightTransferEngine[ReceiverInit, BucketUpdate]):
    """Loads merged weights over the old ones. Parameters keep their storage, so captured graphs stay valid."""

    init_info_cls = ReceiverInit
    update_info_cls = BucketUpdate
    receiver: BucketReceiver | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.experts = ExpertReload(self.model, self.model_config)
        self.verifying = False
        self.stored: set[int] = set()

    def init_transfer_engine(self, init_info: ReceiverInit) -> None:
        module, _, function = init_info.factory.partition(":")
        factory = getattr(importlib.import_module(module), function)
        rank = self.parallel_config.data_parallel_index * self.parallel_config.world_size + self.parallel_config.rank
        if self.receiver is not None:
            self.receiver.close()
        self.receiver = factory(rank=rank, device=self.device, **init_info.settings)

    def start_weight_update(self) -> None:
        """Only experts have to be prepared: all other weights are overwritten in place."""
        self.verifying = False
        self.stored = _storages(self.model)
        self.experts.start()

    def finish_weight_update(self) -> None:
        self._finish_experts()
        if self.receiver is not None:
            self.receiver.release()
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def abandon_weight_update(self) -> None:
        """After an update that broke off, whatever it had reached."""
        self.experts.abandon()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    @torch.no_grad()
    def receive_weights(self, update_info: BucketUpdate) -> None:
        if self.receiver is None:
            raise WeightSyncError("the weight receiver was not initialised before the first update")
        bucket = update_info.bucket()
        buffer = self.receiver.receive(bucket)
        if update_info.checksums:
            _check(bucket, buffer)
        if self.experts.layers:
            # A layer of experts keeps its tensors until it has all; this memory will serve the next bucket.
            buffer = buffer[: bucket.nbytes].clone()
        if update_info.verify_only:
            self._compare(bucket, tensors_of(bucket, buffer))
        else:
            self.model.load_weights(tensors_of(bucket, buffer))

    def _compare(self, bucket: Bucket, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        if not self.verifying:
            self._finish_experts()
            self.experts.start()
            self.verifying = True
        with CompareInsteadOfCopy(self.stored) as comparison:
            self.model.load_weights(tensors)
        comparison.raise_on_difference(
            f"version {bucket.version}, bucket {bucket.index} ({bucket.entries[0].name} ...)"
        )
        # Experts are compared when their layer is complete; of other weights every bucket has some.
        if not (comparison.reached if self.experts.layers else comparison.compared):
            raise WeightSyncError(f"no tensor of bucket {bucket.index} ({bucket.entries[0].name} ...) has a parameter")

    def _finish_experts(self) -> None:
        """Layers that are still short of elements, padding for example, are loaded or compared now."""
        if self.verifying:
            with CompareInsteadOfCopy(self.stored) as comparison:
                self.experts.finish()
            comparison.raise_on_difference("experts")
        else:
            self.experts.finish()

    def shutdown(self) -> None:
        if self.receiver is not None:
            self.receiver.close()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise TypeError("the trainer sends through nemo_rl.weight_sync, not through this class")


def _check(bucket: Bucket, buffer: torch.Tensor) -> None:
    found = checksums([buffer[entry.offset : entry.offset + entry.nbytes] for entry in bucket.entries])
    for entry, code in zip(bucket.entries, found, strict=True):
        if code != entry.checksum:
            raise WeightSyncError(
                f"{entry.name} arrived damaged at version {bucket.version}: checksum {code}, sent {entry.checksum}"
            )


def _storages(model: torch.nn.Module) -> set[int]:
    """Addresses of the memory that the model computes with."""
    return {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}


class CompareInsteadOfCopy(TorchDispatchMode):
    """While active, copies into the model's memory compare instead: what a weight loader would write, what is there.

    This sees exactly the slices, fusions, casts and repacking that loading performs, whatever the architecture.
    """

    def __init__(self, stored: set[int]) -> None:
        super().__init__()
        self.stored = stored
        self.reached = 0
        self.compared = 0
        self.different = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            target, source = args[0], args[1]
            self.reached += 1
            if not target.is_meta and target.untyped_storage().data_ptr() in self.stored:
                self.compared += 1
                expected = source.to(device=target.device, dtype=target.dtype).expand_as(target)
                self.different += int(not torch.equal(target, expected))
                return target
        return function(*args, **(kwargs or {}))

    def raise_on_difference(self, what: str) -> None:
        if self.different:
            raise WeightSyncError(
                f"verification of weights ({what}): {self.different} of {self.compared} tensors "
                "differ between trainer and engine"
            )


class WorkerExtension:
    """Mixed into vLLM's worker; its import registers the transfer engine above in that process."""

    def abandon_update(self) -> None:
        """Close the update session that a failed sync left open, so that the next one can start."""
        self._weight_update_active = False
        self.weight_transfer_engine.abandon_weight_update()  # type: ignore[attr-defined]

    def memory_gib(self) -> dict[str, float]:
        return memory_gib()

    def fill_weights(self, value: float) -> None:
        """Overwrite every parameter, to prove in tests that a sync replaces all of them."""
        with torch.no_grad():
            for parameter in self.model_runner.model.parameters():  # type: ignore[attr-defined]
                parameter.fill_(value)


def _end_with_parent() -> None:
    """A killed actor must not leave vLLM's processes behind: ask Linux to end this one when its parent is gone."""
    if multiprocessing.parent_process() is not None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_end_with_parent()

if current_platform.is_cpu():
    # vLLM's CPU linears pre-pack their weight for oneDNN and drop the original, so that nothing could be loaded later.
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False

if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, BucketWeightTransfer)
