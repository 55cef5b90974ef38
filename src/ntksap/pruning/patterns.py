"""Patterns: which weights of a layer live or die together, or exclude each other. See `pattern_named`.

Within a layer, a pattern either *caps* (at most so many of each set of neighbours are kept: `Cap`) or *ties* (whole
groups are kept or removed: `Tie`). Both see a weight as matrices (positions of the kernel, outputs, inputs), see
`ntksap.net.WeightView`. Channels span several layers: they are selected in `ntksap.compaction`.
"""

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from ntksap._base import InputError
from ntksap.net import WeightView

CHANNEL = "channel"
"""The name of the one pattern that spans several layers."""


@dataclass(frozen=True)
class Cap(ABC):
    """At most so many of each set of neighbours; single weights are ranked."""

    name: str

    @abstractmethod
    def capacity(self, view: WeightView) -> int:
        """Return how many weights of a layer may be kept."""

    @abstractmethod
    def candidates(self, scores: Tensor, free: Tensor) -> Tensor:
        """Return bool (K, O, I): a best set of free weights that obeys, as large as possible; all its subsets obey."""

    @abstractmethod
    def obeys(self, mask: Tensor) -> bool:
        """Return whether a mask (K, O, I) obeys."""


@dataclass(frozen=True)
class Groups:
    """What is ranked instead of weights: groups, with the sum of their scores and their number of weights.

    ``mask(chosen)`` is the mask, in the shape of the layer, that keeps the chosen groups.
    """

    scores: Tensor
    sizes: Tensor
    mask: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Tie(ABC):
    """Groups of weights that are kept or removed as one."""

    name: str

    @abstractmethod
    def unit(self, view: WeightView) -> int:
        """Return the number of weights in a whole group."""

    @abstractmethod
    def count(self, view: WeightView) -> int:
        """Return the number of groups."""

    @abstractmethod
    def groups(self, view: WeightView, scores: Tensor, free: Tensor) -> Groups:
        """Return the groups of a layer; those without a free weight come last or have the size 0."""

    @abstractmethod
    def obeys(self, mask: Tensor) -> bool:
        """Return whether a mask (K, O, I) obeys."""


class NOfM(Cap):
    """``N:M``: at most N of M consecutive inputs, for each output and position of the kernel."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__(f"{n}:{m}")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "m", m)

    n: int
    m: int

    def capacity(self, view: WeightView) -> int:
        """N of each M, and N of the remainder at the end too, if it has that many."""
        positions, outputs, inputs = view.sizes
        return positions * outputs * (inputs // self.m * self.n + min(inputs % self.m, self.n))

    def candidates(self, scores: Tensor, free: Tensor) -> Tensor:
        """The N largest of each M; ties go to the lower index."""
        tiles = _tiles(scores.masked_fill(~free, -math.inf), 1, self.m, -math.inf).squeeze(-2)
        order = tiles.argsort(dim=-1, descending=True, stable=True)
        best = torch.zeros_like(tiles, dtype=torch.bool).scatter_(-1, order[..., : self.n], True)
        return _untiled(best.unsqueeze(-2), scores.shape) & free

    def obeys(self, mask: Tensor) -> bool:
        """Count in each M."""
        return bool((_tiles(mask.int(), 1, self.m, 0).sum((-2, -1)) <= self.n).all())


class Transposable(Cap):
    """``transposable-N:4``: at most N of 4 consecutive inputs and of 4 consecutive outputs: the transpose obeys too."""

    def __init__(self, n: int) -> None:
        super().__init__(f"transposable-{n}:4")
        object.__setattr__(self, "n", n)

    n: int

    def capacity(self, view: WeightView) -> int:
        """4N in each tile of 4×4; in a tile at an edge, the most that any regular tile has in that part."""
        positions, outputs, inputs = view.sizes
        regular = regular_tiles(self.n)
        total = 0
        for rows, high in ((4, outputs // 4), (outputs % 4, 1)):
            for columns, wide in ((4, inputs // 4), (inputs % 4, 1)):
                if rows and columns:
                    total += high * wide * int(regular[:, :rows, :columns].sum((1, 2)).max())
        return positions * total

    def candidates(self, scores: Tensor, free: Tensor) -> Tensor:
        """For each tile, the one of the 90 regular ones (N = 2) whose sum is largest."""
        tiles = _tiles(scores.double(), 4, 4, 0.0)
        open_ = _tiles(free, 4, 4, False)
        low, high = (getattr(tiles, bound)(dim=(-2, -1), keepdim=True) for bound in ("amin", "amax"))
        level = (tiles - low) / (high - low).clamp_min(torch.finfo(torch.float64).tiny)
        level = level.masked_fill(~open_, -100.0)  # as many free weights as possible, then the largest sum
        regular = regular_tiles(self.n)
        best = (level.flatten(-2) @ regular.flatten(1).T.double()).argmax(-1)
        return _untiled(regular[best], scores.shape) & free

    def obeys(self, mask: Tensor) -> bool:
        """Count in the rows and the columns of each tile."""
        tiles = _tiles(mask.int(), 4, 4, 0)
        return all(bool((tiles.sum(dim) <= self.n).all()) for dim in (-2, -1))


@lru_cache
def regular_tiles(n: int) -> Tensor:
    """Return all 4×4 bool matrices with ``n`` in each row and column: 24, 90 or 24 of them for n = 1, 2, 3."""
    rows = [row for row in itertools.product([False, True], repeat=4) if sum(row) == n]
    tiles = torch.tensor(list(itertools.product(rows, repeat=4)), device="cpu")
    return tiles[(tiles.sum(1) == n).all(1)]


class Block(Tie):
    """``block:RxC``: R outputs × C inputs at a position of the kernel; blocks at the edges are smaller."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(f"block:{rows}x{columns}")
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "columns", columns)

    rows: int
    columns: int

    def unit(self, view: WeightView) -> int:
        """R·C, or less in a layer that is smaller."""
        _, outputs, inputs = view.sizes
        return min(self.rows, outputs) * min(self.columns, inputs)

    def count(self, view: WeightView) -> int:
        """How many blocks cover the layer."""
        positions, outputs, inputs = view.sizes
        return positions * math.ceil(outputs / self.rows) * math.ceil(inputs / self.columns)

    def groups(self, view: WeightView, scores: Tensor, free: Tensor) -> Groups:
        """Sums over blocks."""
        tiles = _tiles(scores.masked_fill(~free, 0), self.rows, self.columns, 0)
        sizes = _tiles(free.int(), self.rows, self.columns, 0).sum((-2, -1))

        def mask(chosen: Tensor) -> Tensor:
            spread = chosen.view(sizes.shape)[..., None, None].expand(tiles.shape)
            return view.tensor(_untiled(spread, scores.shape) & free)

        return Groups(tiles.sum((-2, -1)).flatten(), sizes.flatten(), mask)

    def obeys(self, mask: Tensor) -> bool:
        """Each block is whole or empty."""
        kept = _tiles(mask.int(), self.rows, self.columns, 0).sum((-2, -1))
        full = _tiles(torch.ones_like(mask, dtype=torch.int), self.rows, self.columns, 0).sum((-2, -1))
        return bool(((kept == 0) | (kept == full)).all())


@dataclass(frozen=True)
class Channel:
    """``channel``: whole channels of the network, with all weights of all layers that write or read them.

    The module's graph says which channels belong together (`ntksap.compaction`), single weights do not: a mask can
    only be asked whether it removes whole outputs and inputs and nothing else.
    """

    name: str = CHANNEL

    def obeys(self, mask: Tensor) -> bool:
        """What is kept is a box: the outputs of which anything is kept × the inputs of which anything is kept."""
        return bool((mask == mask.any(2, keepdim=True).any(0) & mask.any(1, keepdim=True).any(0)).all())


class FanIn(Tie):
    """``fan-in``: every output of a layer keeps the same number of weights.

    The first group holds the best weight of each output, the second the next best, and so on: their sums fall, so the
    groups that are kept are always the first ones.
    """

    def __init__(self) -> None:
        super().__init__("fan-in")

    def unit(self, view: WeightView) -> int:
        """One more weight for every output."""
        return view.sizes[1]

    def count(self, view: WeightView) -> int:
        """The number of weights of an output."""
        positions, _, inputs = view.sizes
        return positions * inputs

    def groups(self, view: WeightView, scores: Tensor, free: Tensor) -> Groups:
        """Ranks within each output."""
        rows, open_ = (part.permute(1, 0, 2).flatten(1) for part in (scores, free))
        order = rows.masked_fill(~open_, -math.inf).argsort(dim=1, descending=True, stable=True)
        sums = rows.masked_fill(~open_, 0).gather(1, order).sum(0)
        sizes = open_.gather(1, order).sum(0)

        def mask(chosen: Tensor) -> Tensor:
            kept = torch.zeros_like(open_).scatter_(1, order, chosen.expand(order.shape)) & open_
            return view.tensor(kept.unflatten(1, (len(scores), -1)).permute(1, 0, 2))

        return Groups(sums, sizes, mask)

    def obeys(self, mask: Tensor) -> bool:
        """Count in each output."""
        fan_in = mask.sum((0, 2))
        return bool((fan_in == fan_in[:1]).all())


Pattern = Cap | Tie
"""What ties or excludes weights of one layer."""

_KNOWN = "N:M such as 2:4, transposable-2:4, block:RxC such as block:4x4, fan-in, channel"


def pattern_named(name: str) -> Pattern | Channel:
    """Return the pattern of that name.

    - ``N:M``, such as ``2:4`` or ``4:8``: of M consecutive inputs at most N are kept;
    - ``transposable-2:4``: the same along outputs, so that the transpose obeys too;
    - ``block:RxC``: R outputs × C inputs are kept or removed together;
    - ``fan-in``: every output of a layer keeps the same number of weights;
    - ``channel``: whole channels of the network are kept or removed, in every layer that writes or reads them.
    """
    if name == CHANNEL:
        return Channel()
    if name == "fan-in":
        return FanIn()
    if found := re.fullmatch(r"(transposable-)?(\d+):(\d+)", name):
        n, m = int(found[2]), int(found[3])
        if not 1 <= n < m:
            raise InputError(f"pattern {name!r}: of M weights 1 ≤ N < M are kept, such as 2:4")
        if found[1] and m != 4:
            raise InputError(f"pattern {name!r}: transposable patterns are transposable-1:4, -2:4 and -3:4")
        return Transposable(n) if found[1] else NOfM(n, m)
    if (found := re.fullmatch(r"block:(\d+)x(\d+)", name)) and int(found[1]) and int(found[2]):
        return Block(int(found[1]), int(found[2]))
    raise InputError(f"unknown pattern {name!r}. Known: {_KNOWN}.")


def _tiles(matrices: Tensor, rows: int, columns: int, beyond: float | bool) -> Tensor:
    """(K, O, I) → (K, ⌈O/rows⌉, ⌈I/columns⌉, rows, columns), padded with ``beyond``."""
    _, outputs, inputs = matrices.shape
    padded = functional.pad(matrices, (0, -inputs % columns, 0, -outputs % rows), value=beyond)
    tiled: Tensor = padded.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))
    return tiled.transpose(2, 3)


def _untiled(tiles: Tensor, shape: torch.Size) -> Tensor:
    """Undo `_tiles`, given the original shape."""
    return tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, : shape[1], : shape[2]]
