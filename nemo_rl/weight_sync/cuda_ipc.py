"""Transport for engines on the trainer's own GPUs: CUDA IPC handles to two buffers, used in turn.

Every training rank serves the engine worker on its GPU; a handle is found by the GPU's UUID, since processes number
their visible devices differently. Buffers live only while a sync lasts: between syncs the memory belongs to the engine.
"""

from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from nemo_rl.weight_sync.interfaces import Bucket


def device_uuid(device: torch.device | int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


class CudaIpcSender:
    """The trainer's end on one GPU."""

    def __init__(self) -> None:
        self.uuid = device_uuid(torch.cuda.current_device())
        self.buffers: dict[int, torch.Tensor] = {}

    def buffer(self, index: int, nbytes: int) -> torch.Tensor:
        slot = index % 2
        if slot not in self.buffers or self.buffers[slot].numel() < nbytes:
            self.buffers.pop(slot, None)
            self.buffers[slot] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return self.buffers[slot]

    def handle(self, index: int, nbytes: int) -> dict[str, Any]:
        torch.cuda.current_stream().synchronize()
        _, shared = reduce_tensor(self.buffers[index % 2])
        # (class, size, stride, offset, storage class, dtype, device, handle, bytes, offset, needs grad, counter, ...)
        return {self.uuid: [shared[7], shared[8], shared[9], *shared[11:]]}

    def send(self, bucket: Bucket) -> None:
        """The bytes are already where the receiver looks."""

    def finish(self) -> None:
        self.buffers.clear()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()

    def close(self) -> None:
        self.finish()


class CudaIpcReceiver:
    """The engine's end; opens the handle that belongs to its own GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.uuid = device_uuid(device)
        self.current: torch.Tensor | None = None

    def receive(self, bucket: Bucket) -> torch.Tensor:
        if self.uuid not in bucket.handles:
            raise ConnectionError(
                f"no trainer rank shares GPU {self.uuid} with this engine "
                f"(GPUs of the trainer: {sorted(bucket.handles)})"
            )
        handle, nbytes, offset, *counters = bucket.handles[self.uuid]
        self.current = rebuild_cuda_tensor(
            torch.Tensor, torch.Size([nbytes]), (1,), 0, torch.UntypedStorage, torch.uint8, self.device.index or 0,
            handle, nbytes, offset, False, *counters,
        )  # fmt: skip
        return self.current

    def release(self) -> None:
        self.current = None

    def close(self) -> None:
        self.release()
