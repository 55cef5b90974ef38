"""Channel ids: which indices of which axes live or die together.

Every index of every axis of every tensor in the graph carries an integer. Operators that move entries move the
integers along; operators that combine entries unite them. What is united in the end is one *unit*, which is kept or
removed as a whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

FIXED = 0
"""The id of indices that can never be removed: batch, space, tokens, and everything else that inputs decide."""


@dataclass(frozen=True)
class Axes:
    """The ids of a tensor: one array for each dimension, as long as that dimension."""

    ids: tuple[Ints, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(len(ids) for ids in self.ids)

    @property
    def present(self) -> Ints:
        """All ids that the tensor has, in no particular order."""
        return np.concatenate([np.zeros(0, np.int64), *self.ids])

    def along(self, dim: int) -> Ints:
        """Return the ids of one dimension."""
        return self.ids[dim]

    def replaced(self, dim: int, ids: Ints) -> "Axes":
        """Return the axes with other ids in one dimension."""
        dim %= len(self.ids)
        return Axes((*self.ids[:dim], ids, *self.ids[dim + 1 :]))


def fixed(shape: Sequence[int]) -> Axes:
    """Return axes of which nothing can be removed."""
    return Axes(tuple(np.zeros(size, np.int64) for size in shape))


class Units:
    """Disjoint sets of ids, some of them frozen, with the reason why."""

    def __init__(self) -> None:
        """Start with the one id that is fixed."""
        self._parent = np.zeros(1024, np.int64)
        self._size = 1
        self._why: dict[int, str] = {FIXED: "its size is decided by the inputs"}

    def new(self, count: int) -> Ints:
        """Return ``count`` ids that nothing is united with yet."""
        start, end = self._size, self._size + count
        while end > len(self._parent):
            self._parent = np.concatenate([self._parent, np.zeros_like(self._parent)])
        self._parent[start:end] = np.arange(start, end)
        self._size = end
        return np.arange(start, end)

    def roots(self, ids: Ints) -> Ints:
        """Return the id that represents the unit of each id."""
        found = self._parent[ids]
        while True:
            above = self._parent[found]
            if np.array_equal(above, found):
                self._parent[ids] = found
                return found
            found = above

    def unite(self, first: Ints, second: Ints, reason: str) -> None:
        """Unite ids pairwise; what meets `FIXED` is frozen for ``reason``."""
        if first is second:
            return
        a, b = self.roots(first), self.roots(second)
        for x, y in zip(a[a != b].tolist(), b[a != b].tolist(), strict=True):
            if FIXED in (x, y):
                self.freeze(np.array([x or y]), reason)
                continue
            low, high = sorted((self._root(x), self._root(y)))
            self._parent[high] = low
            if high in self._why:
                self._why.setdefault(low, self._why[high])

    def _root(self, some: int) -> int:
        while (above := int(self._parent[some])) != some:
            some = above
        return some

    def freeze(self, ids: Ints, reason: str) -> None:
        """Let the units of ``ids`` never be removed; the first reason is kept."""
        for root in np.unique(self.roots(ids)).tolist():
            self._why.setdefault(root, reason)

    def free(self, ids: Ints) -> NDArray[np.bool_]:
        """Return which ids may be removed."""
        roots = self.roots(ids)
        if not roots.any():
            return np.zeros(len(ids), np.bool_)
        return np.array([root not in self._why for root in roots.tolist()], np.bool_)

    def marks(self, ids: Iterable[int]) -> NDArray[np.bool_]:
        """Return a table that is True at ``ids``, for looking up many at a time."""
        table = np.zeros(self._size, np.bool_)
        table[np.fromiter(ids, np.int64)] = True
        return table

    def reason(self, some: int) -> str | None:
        """Return why an id is frozen, None if it is not."""
        return self._why.get(self._root(some))
