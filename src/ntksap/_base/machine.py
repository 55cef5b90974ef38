"""What the machine says about itself and this process, and what this process asks of it."""

import ctypes
import functools
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

from ntksap._base.errors import InputError


def peak_memory_mib() -> float:
    """Return the most memory this process has held: on the GPU if it used one, else in RAM, in MiB; 0 if unknown."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    if (kib := _kib("/proc/self/status", "VmHWM")) is not None:
        return kib / 2**10
    try:
        import resource  # Windows has no such module
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux this counts the parent process as well
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def available_memory_mib() -> float | None:
    """Return how much RAM this process can still take, in MiB, of the machine or its control group; None if unknown."""
    known = [kib / 2**10 for kib in [_kib("/proc/meminfo", "MemAvailable")] if kib is not None]
    with suppress(OSError, ValueError):  # no such group, or "max"
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{file}").read_text()) for file in ("max", "current"))
        known.append((limit - used) / 2**20)
    return min(known, default=None)


def _kib(file: str, key: str) -> int | None:
    """Return a number of KiB that Linux gives in a line ``key: number kB``, None elsewhere."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_device(device: torch.device | str) -> torch.device:
    """Return a device on which tensors can be made, or raise `InputError`."""
    try:
        made = torch.device(device)
        if made.type == "meta":
            raise InputError("nothing can be computed on the device meta, which holds no numbers: choose cpu")
        torch.empty(1, device=made)
    except InputError:
        raise
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"the device {str(device)!r} cannot be used here: {reason.rstrip('.')}. Without it, cpu always works"
        ) from error
    return made


def check_bfloat16(device: torch.device) -> None:
    """Raise `InputError` where a product of torch's in bfloat16 would end the process without a word."""
    if device.type == "cpu" and bfloat16_crashes():
        raise InputError(
            "torch crashes in bfloat16 on this processor (its AMX instructions do not work): compute in float32, or "
            "set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, with which torch does without them"
        )


@functools.cache
def bfloat16_crashes() -> bool:
    """Return whether torch crashes in bfloat16 here, as on virtual machines that promise AMX but lack part of it.

    Another process tries, once, and only where the processor promises AMX.
    """
    with suppress(OSError):
        if "amx_tile" in Path("/proc/cpuinfo").read_text():
            code = "import torch; x = torch.ones(16, 1024, dtype=torch.bfloat16); x @ x.t()"
            return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0
    return False


def keep_memory() -> None:
    """Let this process keep the memory that it frees for what it allocates next; for processes that are ours alone.

    The C library would return large pieces to the system, which fills each with zeros when it is asked for again. Only
    glibc knows these settings; elsewhere nothing happens.
    """
    trim_threshold, mmap_threshold = -1, -3  # from malloc.h
    with suppress(AttributeError, OSError, TypeError):  # TypeError: Windows has no library without a name
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 2**30)
        library.mallopt(trim_threshold, 2**31 - 1)
