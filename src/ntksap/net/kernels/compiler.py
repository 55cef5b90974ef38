"""Compiles the kernels once per machine, and calls them."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from ntksap._base import InputError, has_own_rules
from ntksap.net.kernels.cache import find, keep, private_folders

SOURCES = ("kernels.c", "sparse_conv.h", "sparse_linear.h", "batch_norm.h", "winograd.h")
TUNED: tuple[list[str], ...] = (["-march=native"], ["-mcpu=native"], [])  # the first that the compiler knows

_REAL = (torch.float32, torch.float64)
_SUFFIXES = {torch.float32: "_float", torch.float64: "_double", None: ""}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where there are none: no compiler, or ``NTKSAP_NATIVE=0``."""
    if os.environ.get("NTKSAP_NATIVE", "1") == "0":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    try:
        return _loaded(compiler)
    except (OSError, RuntimeError, subprocess.SubprocessError):  # nothing to write to, no home, a compiler that fails
        return None


def provenance() -> str:
    """Return whose kernels work on a CPU here. Other kernels give numbers that differ in their last bits."""
    return "torch" if library() is None else "ntksap and torch"


def available(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these tensors, and nobody is watching what torch does with them."""
    if is_compiling():
        return False
    for tensor in tensors:
        if not tensor.is_cpu or tensor.dtype not in _REAL:
            return False
    return library() is not None and not torch._C._len_torch_dispatch_stack()


def transformed(*tensors: Tensor) -> bool:
    """Whether a tensor has rules of its own, or is inside torch.compile, torch.func or forward mode."""
    if is_compiling() or has_own_rules(*tensors):
        return True
    dual = forward_ad._current_level >= 0
    for tensor in tensors:
        if is_functorch_wrapped_tensor(tensor) or (dual and forward_ad.unpack_dual(tensor).tangent is not None):
            return True
    return False


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels can work on x with these weights, and give what torch would give."""
    if x.dtype != weight.dtype or not weight.is_cpu or torch.is_autocast_enabled("cpu"):
        return False
    return available(x) and not transformed(x, weight) and x.numel() > 0


def refuse_recording(x: object) -> None:
    """Raise `InputError` if x is being traced or exported: a graph holds operators of torch only."""
    if torch._C._get_tracing_state() is not None or _is_exporting() or isinstance(x, torch.fx.Proxy):
        raise InputError(_NO_RECORDING)


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # not in torch 2.6


class Unscriptable:
    """A base of the classes that layers take on for a while; torch.jit.script asks it before it reads their code."""

    def __prepare_scriptable__(self) -> None:
        raise InputError(_NO_RECORDING)


_NO_RECORDING = (
    "a module cannot be traced, scripted or exported inside sparse_kernels, whose kernels are not operators of torch: "
    "leave the block first (the graph then holds dense layers, with zeros for the pruned weights)"
)


class After(NamedTuple):
    """What follows a convolution in evaluation: relu(a·y + b + add), a and b (C',), add like y; nothing without a."""

    a: Tensor | None = None
    b: Tensor | None = None
    add: Tensor | None = None
    relu: bool = False


NOTHING = After()


def call(name: str, dtype: torch.dtype | None, *arguments: object) -> None:
    """Call a kernel; its arguments are tensors (or None), numbers, and what it is given by reference."""
    kernel = getattr(library(), name + _SUFFIXES[dtype])
    if kernel.argtypes is None:  # once: telling ctypes takes less time than wrapping every argument of every call
        kernel.argtypes = [_type_of(value) for value in arguments]
    if kernel(*[value.data_ptr() if isinstance(value, Tensor) else value for value in arguments]):
        raise torch.OutOfMemoryError(f"can't allocate memory for {name}")


def threads() -> int:
    """Return how many threads share the work of a kernel: as many as torch uses."""
    return torch.get_num_threads()


def _type_of(value: object) -> type[Any]:
    if isinstance(value, ctypes.Structure | ctypes.c_int64):  # by reference
        return ctypes.POINTER(type(value))
    return (
        ctypes.c_int64 if isinstance(value, int) else ctypes.c_double if isinstance(value, float) else ctypes.c_void_p
    )


def _loaded(compiler: str) -> ctypes.CDLL:
    """Return the shared library, from a cache if this machine has compiled these sources before."""
    here, commands = Path(__file__).parent / "csrc", _commands(compiler)
    key = hashlib.sha256(b"".join((here / name).read_bytes() for name in SOURCES))
    key.update(repr((_processor(), commands, subprocess.check_output([compiler, "--version"]))).encode())
    name = f"kernels-{key.hexdigest()[:16]}"
    for folder in private_folders():
        with suppress(OSError):  # a disk that is full, or that nothing may be executed from: try the next
            return ctypes.CDLL(str(find(folder, name) or keep(folder, name, lambda path: _compile(commands, path))))
    raise OSError("no folder for the kernels")


def _compile(commands: list[list[str]], path: Path) -> None:
    """Make the shared library with the first of the commands that works."""
    if all(subprocess.run([*one, "-o", str(path)], capture_output=True, timeout=120).returncode for one in commands):
        raise RuntimeError(f"{commands[0][0]} could not compile the kernels")


def _commands(compiler: str) -> list[list[str]]:
    """Return what to try, best first: with OpenMP or in one thread, tuned for this machine or not."""
    here, libraries = Path(__file__).parent / "csrc", Path(torch.__file__).parent / "lib"
    plain = [compiler, "-O3", "-std=gnu11", "-shared", "-fPIC", str(here / SOURCES[0])]
    # Linked to the same OpenMP that torch brings: threads of a second one would wait for work on the same cores.
    parallel = ["-fopenmp", "-Wl,--as-needed", *sorted(map(str, libraries.glob("libgomp*")))]
    return [[*plain, *tuned, *threads] for threads in (parallel, []) for tuned in TUNED]


def _processor() -> str:
    """What decides whether code tuned for one machine runs on another that shares its home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()
