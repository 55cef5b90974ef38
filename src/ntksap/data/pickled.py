"""Read the pickled ("python") version of CIFAR without letting the file run code.

A pickle names the functions it wants called. Those files need four names; each is answered with an inert stand-in
below, and every other name is refused, so neither Python's nor numpy's unpickling acts on what the file says.
"""

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Dtype:
    """Stands in for numpy.dtype: remembers the type's code, e.g. "u1"."""

    def __init__(self, code: str, align: object = None, copy: object = None) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like: only single bytes are accepted."""


class _Array:
    """Stands in for numpy.ndarray: remembers shape, type and bytes, and is checked by `to_numpy`."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def to_numpy(self) -> NDArray[np.uint8]:
        _version, shape, dtype, fortran_order, data = self.state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1", "uint8") or fortran_order:
            raise pickle.UnpicklingError("its array is not rows of unsigned bytes")
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)  # Python 2 wrote bytes as str
        return np.frombuffer(raw, np.uint8).reshape(shape)


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    """Stands in for numpy's function of that name, which makes the empty array that is filled afterwards."""
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, with which Python 3 writes bytes in the old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # its name since numpy 2
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which such a file does not need")
        return ADMITTED[module, name]


def unpickle(blob: bytes, labels_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (data uint8 N,3072, labels int64 N) of one pickled batch; anything else is a pickle.UnpicklingError."""
    try:
        batch = _Unpickler(io.BytesIO(blob), encoding="latin1").load()
        if not all(type(label) is int for label in batch[labels_key]):
            raise pickle.UnpicklingError(f"its {labels_key} are not all integers")
        return batch["data"].to_numpy(), np.array(batch[labels_key], np.int64)
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a malformed pickle may fail in any way at all
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
