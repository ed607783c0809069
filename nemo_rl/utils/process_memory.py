"""What this process, and a GPU that it uses, hold in memory."""

import os

import psutil
import torch


def memory_gib() -> dict[str, float]:
    """GiB: resident memory of this process; on a GPU also what torch's allocator holds and what all programs use."""
    report = {"rss": psutil.Process(os.getpid()).memory_info().rss / 2**30}
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        report |= {
            "allocated": torch.cuda.memory_allocated() / 2**30,
            "reserved": torch.cuda.memory_reserved() / 2**30,
            "peak": torch.cuda.max_memory_allocated() / 2**30,
            "device_used": (total - free) / 2**30,
        }
    return report
