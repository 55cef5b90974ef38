"""The n-th largest of many values: found by counting, without sorting or copying them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[Any]

_CHUNK = 2**17
"""Values at a time, so that what is computed from them stays in the cache."""

_DIGIT = 16
"""Bits that are counted at a time: 2¹⁶ counters."""


def nth_largest(values: Sequence[Floats], free: Sequence[Bools | None], count: int) -> np.floating:
    """Return the ``count``-th largest of the free values of all arrays together, 1 ≤ count ≤ how many there are.

    As unsigned integers of the right kind (`_keys`), floats keep their order. Their upper 16 bits are counted, and the
    counts say which of these the value sought has; then the next 16 bits of the values that share them are counted,
    and so on. Two passes for float32, four for float64, in any order of the values and with any number of equal ones.

    Args:
        values: finite, all of the same type, float32 or float64.
        free: which of them count; None where all do.
    """
    kind = values[0].dtype
    bits = 8 * kind.itemsize
    upper = 0  # the bits that are known
    # Finding the free values takes longer than counting them, and they are fewer: they are kept for the next pass.
    found_once = list(_chunks(values, free)) if all(f is not None for f in free) else None
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(2**_DIGIT, np.int64)
        for keys in found_once or _chunks(values, free):
            if shift < bits - _DIGIT:
                keys = keys[keys >> (shift + _DIGIT) == upper]
            counts += np.bincount((keys >> shift & 2**_DIGIT - 1).astype(np.intp), minlength=2**_DIGIT)
        reached = np.cumsum(counts[::-1])  # how many values have a digit of 2¹⁶ − 1 − index or more
        index = int(np.searchsorted(reached, count))
        count -= int(reached[index - 1]) if index else 0
        upper = upper << _DIGIT | 2**_DIGIT - 1 - index
    found: np.floating = _values(np.array([upper], f"u{kind.itemsize}"), kind)[0]
    return found


def _chunks(values: Sequence[Floats], free: Sequence[Bools | None]) -> Iterator[Integers]:
    """Yield the keys of all free values: of a large array in pieces, of small ones together."""
    small: list[Floats] = []
    for v, f in zip(values, free, strict=True):
        for start in range(0, v.size, _CHUNK):
            part = v[start : start + _CHUNK]
            small.append(part if f is None else part[f[start : start + _CHUNK]])
            if sum(part.size for part in small) >= _CHUNK:
                yield _keys(np.concatenate(small))
                small = []
    if small:
        yield _keys(np.concatenate(small))


def _keys(values: Floats) -> Integers:
    """Return unsigned integers in the order of ``values``: the sign bit flipped, or all bits where negative."""
    signed = (values + 0.0).view(f"i{values.itemsize}")  # −0 + 0 = 0: the two zeros are equal
    flips = signed >> (8 * values.itemsize - 1)  # all bits where negative
    flips |= np.iinfo(signed.dtype).min
    flips ^= signed
    return flips.view(f"u{values.itemsize}")


def _values(keys: Integers, kind: np.dtype[Any]) -> Floats:
    """Return the values that `_keys` was given: its inverse."""
    signed = keys.view(f"i{kind.itemsize}")
    flips = ~signed >> (8 * kind.itemsize - 1) | np.iinfo(signed.dtype).min
    values: Floats = (signed ^ flips).view(kind)
    return values


def top(values: Sequence[Floats], free: Sequence[Bools | None], count: int) -> list[Bools]:
    """Mark the ``count`` largest free values of all arrays together; equal values go to the earlier place.

    ``free`` is None where all values of an array are free.
    """
    if count == 0:
        return [np.zeros(v.shape, np.bool_) for v in values]
    kind = np.result_type(*values)
    threshold = nth_largest([v.astype(kind, copy=False) for v in values], free, count)
    marks = [v > threshold for v in values]
    for f, m in zip(free, marks, strict=True):
        if f is not None:
            m &= f
    missing = count - sum(int(np.count_nonzero(m)) for m in marks)
    for v, f, m in zip(values, free, marks, strict=True):
        if missing == 0:
            break
        ties = np.flatnonzero(v == threshold if f is None else f & (v == threshold))[:missing]
        m[ties] = True
        missing -= ties.size
    return marks


def ranked(scores: Tensor) -> Floats:
    """Return scores as a flat array of float32, or of float64 if that is their dtype."""
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    values: Floats = scores.detach().to("cpu", wide).contiguous().flatten().numpy()
    return values


def flat(mask: Tensor) -> Bools:
    """Return a mask as a flat array."""
    values: Bools = mask.detach().cpu().contiguous().flatten().numpy()
    return values
