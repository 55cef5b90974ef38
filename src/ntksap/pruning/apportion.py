"""Sharing a whole number among layers: in proportion to quotas, within bounds, exact in the sum."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Reals: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_LEVEL = 9
"""Decimal places of a remainder that count; remainders that differ by less are a tie."""


def apportion(
    kept: int,
    quotas: Sequence[float],
    least: Sequence[int],
    most: Sequence[int],
    groups: Sequence[tuple[Sequence[int], int]] = (),
) -> list[int]:
    """Return whole numbers in proportion to ``quotas``, each between its least and its most, whose sum is ``kept``.

    Real shares first: clip(c·quota, least, most) with the one factor c that makes the sum right, so that what a full
    layer cannot take goes to the others in proportion. Then each is rounded down, and what is missing goes one by one
    to the largest remainders, ties to the lower index.

    Args:
        kept: between the sum of ``least`` and the sum of ``most``.
        quotas: not negative; a layer whose quota is 0 gets more than its least only when all others are full.
        least, most: bounds of each share.
        groups: (indices of layers, the least that they keep together), such as the blocks of a network; a layer is in
            one group or none. A group that falls short gets a factor c of its own.

    >>> apportion(10, [1, 1, 1], [0, 0, 0], [9, 9, 2])
    [4, 4, 2]
    """
    wanted = np.maximum(np.asarray(quotas, np.float64), 0)
    wanted = np.maximum(wanted / wanted.max(), 1e-12) if wanted.any() else np.ones_like(wanted)
    lower, upper = np.asarray(least, np.int64), np.asarray(most, np.int64)
    if not groups:
        return [int(n) for n in _rounded(kept, _clipped(kept, wanted, lower, upper), lower, upper)]
    members = [np.asarray(part, np.int64) for part, _ in groups]
    inside = {int(index) for part in members for index in part}
    members += [np.array([index]) for index in range(len(wanted)) if index not in inside]
    floors = [max(floor, int(lower[part].sum())) for part, (_, floor) in zip(members, groups, strict=False)]
    bounds = np.array(floors + [int(lower[part].sum()) for part in members[len(floors) :]])
    tops = np.array([int(upper[part].sum()) for part in members])

    def totals(factor: float) -> Reals:
        sums = [np.clip(factor * wanted[part], lower[part], upper[part]).sum() for part in members]
        return np.array([max(total, bound) for total, bound in zip(sums, bounds, strict=True)])

    factor = _root(lambda c: float(totals(c).sum()), kept, float((upper / wanted).max()))
    shares = np.zeros(len(wanted), np.int64)
    for part, total in zip(members, _rounded(kept, totals(factor), bounds, tops), strict=True):
        shares[part] = _rounded(
            int(total), _clipped(int(total), wanted[part], lower[part], upper[part]), lower[part], upper[part]
        )
    return [int(share) for share in shares]


def _clipped(kept: int, wanted: Reals, lower: Integers, upper: Integers) -> Reals:
    """Return clip(c·wanted, lower, upper) with the c that makes the sum ``kept``."""
    factor = _root(lambda c: float(np.clip(c * wanted, lower, upper).sum()), kept, float((upper / wanted).max()))
    shares = np.clip(factor * wanted, lower, upper)
    free = (shares > lower) & (shares < upper)
    if free.any():  # c to the last bit, so that equal quotas are equal shares and whole numbers are whole
        shares[free] = wanted[free] * ((kept - shares[~free].sum()) / wanted[free].sum())
    return np.clip(shares, lower, upper)


def _root(total: Callable[[float], float], kept: int, high: float) -> float:
    """Return the c in [0, high] at which ``total``, which grows with c, reaches ``kept``."""
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if total(middle) < kept else (low, middle)
    return high


def _rounded(kept: int, shares: Reals, lower: Integers, upper: Integers) -> Integers:
    whole = np.clip(np.floor(shares + 10.0**-_LEVEL).astype(np.int64), lower, upper)
    while (gap := kept - int(whole.sum())) != 0:
        # one more (or one less) for those furthest below (above) their share that can still move
        step = 1 if gap > 0 else -1
        movable = np.flatnonzero(whole < upper if step > 0 else whole > lower)
        order = movable[np.argsort(-step * np.round((shares - whole)[movable], _LEVEL), kind="stable")]
        whole[order[: abs(gap)]] += step
    return whole
