"""What the machine tells about itself and this process."""

import os
import resource
import sys
from pathlib import Path

import torch


def peak_memory_mib() -> float:
    """Return the most memory this process has held: on the GPU if it used one, else in RAM, in MiB."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    if (kib := _kib("/proc/self/status", "VmHWM")) is not None:
        return kib / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux this counts the parent process as well
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _kib(file: str, key: str) -> int | None:
    """Return a number of KiB that Linux tells in a line ``key: number kB``, None elsewhere."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
