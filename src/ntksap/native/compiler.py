"""Compiles the kernels once per machine, and calls them."""

import ctypes
import functools
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

SOURCES = ("kernels.c", "sparse_conv.h", "batch_norm.h")
TUNED: tuple[list[str], ...] = (["-march=native"], ["-mcpu=native"], [])  # the first that the compiler knows

_SUFFIXES = {torch.float32: "_float", torch.float64: "_double", None: ""}

Task = tuple[object, ...]


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where there are none: no compiler, or ``NTKSAP_NATIVE=0``."""
    if os.environ.get("NTKSAP_NATIVE", "1") == "0":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # nothing to write to, no home, a compiler that fails
        return None


def available(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these tensors."""
    usable = all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)
    return usable and library() is not None


def call(name: str, dtype: torch.dtype | None, tasks: Sequence[Task]) -> None:
    """Call a kernel once per task, all at the same time; a task is its arguments: tensors, numbers, structures."""
    kernel = getattr(library(), name + _SUFFIXES[dtype])
    calls: list[Callable[[], object]] = [functools.partial(kernel, *map(_argument, task)) for task in tasks]
    failed = [calls[0]()] if len(calls) == 1 else list(_threads(len(calls)).map(lambda one: one(), calls))
    if any(failed):
        raise torch.OutOfMemoryError(f"can't allocate memory for {name}")


def shares(count: int) -> list[tuple[int, int]]:
    """Return (start, end) for each of torch's threads: ``count`` things in equal shares, none of them empty."""
    threads = max(1, min(torch.get_num_threads(), count))
    cuts = [count * index // threads for index in range(threads + 1)]
    return list(itertools.pairwise(cuts))


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="ntksap-native")


if hasattr(os, "register_at_fork"):  # threads do not live on in a forked process
    os.register_at_fork(after_in_child=_threads.cache_clear)


def _argument(value: object) -> object:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr() if value is not None else None)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.byref(value)  # type: ignore[arg-type]


def _compiled(compiler: str) -> Path:
    """Return the shared library, from the cache if this machine has compiled these sources before."""
    here = Path(__file__).parent
    key = hashlib.sha256(b"".join((here / name).read_bytes() for name in SOURCES))
    key.update(repr((_processor(), compiler, subprocess.check_output([compiler, "--version"]))).encode())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ntksap"
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "kernels.so"
        for tuned in TUNED:
            command = [
                compiler,
                "-O3",
                *tuned,
                "-std=gnu11",
                "-shared",
                "-fPIC",
                "-o",
                str(made),
                str(here / SOURCES[0]),
            ]
            if subprocess.run(command, capture_output=True, timeout=120).returncode == 0:
                os.replace(made, path)  # at once, as other processes may be looking
                return path
    raise OSError(f"{compiler} could not compile the kernels")


def _processor() -> str:
    """What decides whether code tuned for one machine runs on another that shares its home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()
