"""Channels on several axes at once: where a view has cut their axis, and no other one has made it whole again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ntksap.compaction.ids import Axes, Ints, fixed
from ntksap.compaction.rules import shape
from ntksap.compaction.rules.table import Operator


@dataclass(frozen=True)
class Split(Axes):
    """A tensor whose channels are on several axes at once; its ``ids`` are all 0.

    Attributes:
        grid: the id of each entry, with size 1 along axes where it does not change.
        views: (operator that cut an axis, its grid), in order: where to look up which axis is that of the channels.
    """

    grid: Ints
    views: tuple[tuple[Operator, Ints], ...]

    @property
    def present(self) -> Ints:
        """All ids that the tensor has."""
        return self.grid.reshape(-1)

    def along(self, dim: int) -> Ints:
        """Return an id for each place of one dimension, after those along the others have been united."""
        highest = np.moveaxis(self.grid, dim, -1).reshape(-1, self.grid.shape[dim]).max(0)
        return np.broadcast_to(highest, self.shape[dim]).copy()


def entries_of(axes: Axes) -> Tensor | None:
    """Return the id of each entry; None if entries have several, those of different axes."""
    if isinstance(axes, Split):
        return torch.from_numpy(np.broadcast_to(axes.grid, axes.shape).astype(np.float64))
    carrying = [dim for dim, ids in enumerate(axes.ids) if ids.any()]
    if len(carrying) > 1:
        return None
    return shape.spread(axes, len(axes.ids) - carrying[0] if carrying else len(axes.ids) + 1)


def grid_of(axes: Axes) -> Ints | None:
    """Return the ids as an array that can be broadcast to the tensor's shape; None if entries have several."""
    if isinstance(axes, Split):
        return axes.grid
    carrying = [dim for dim, ids in enumerate(axes.ids) if ids.any()]
    if len(carrying) != 1:
        return None
    return axes.ids[carrying[0]].reshape([-1 if dim == carrying[0] else 1 for dim in range(len(axes.ids))])


def placed(op: Operator, entries: Tensor, views: Sequence[tuple[Operator, Ints]]) -> Axes:
    """Return axes whose entries have these ids: on one axis if they change along that one alone, else a `Split`."""
    plain = fixed(tuple(entries.shape))
    grid = _thin(op.units.roots(_thin(entries.numpy()).astype(np.int64)))
    if not grid.any():
        return plain
    for dim in range(grid.ndim):
        rows = np.moveaxis(grid, dim, -1).reshape(-1, grid.shape[dim])
        highest = rows.max(0)
        if (highest != highest[0]).any() and ((rows == highest) | (rows == 0)).all():  # 0 is padding
            return plain.replaced(dim, highest)
    if not views or op.name in shape.VIEWS:
        views = (*views, (op, grid))
    return Split(plain.ids, grid, tuple(views))


def _thin(grid: NDArray[Any]) -> NDArray[Any]:
    """Return the grid with size 1 along axes where it does not change."""
    for dim in range(grid.ndim if grid.size else 0):
        first = grid.take([0], dim)
        grid = first if (grid == first).all() else grid
    return grid


def settled(op: Operator, values: Any) -> Any:
    """Return a nest of arguments in which each `Split` is a tensor with channels on one axis."""
    return tree_map_only(Split, lambda axes: _one_axis(op, axes), values)


def _one_axis(op: Operator, axes: Split) -> Axes:
    """Put the channels on the axis that views say is theirs (heads, …), and unite those along the others."""
    for view, grid in axes.views:
        shape.read(view, grid)
    found = placed(op, torch.from_numpy(axes.grid), axes.views)
    if isinstance(found, Split):
        dim, ids = shape.read(op, found.grid)
        if dim is None:  # one channel, taken by its number: any axis of size 1 may be that of channels
            return Axes(tuple(ids if size == 1 else np.zeros(size, np.int64) for size in axes.shape))
    else:
        dim = next(dim for dim, own in enumerate(found.ids) if own.any())
        ids = found.ids[dim]
    return fixed(axes.shape).replaced(dim, ids)


def on_axis(op: Operator, axes: Axes, dim: int) -> Axes:
    """Put the channels of a `Split` on one axis, and unite those along the others."""
    if not isinstance(axes, Split):
        return axes
    rows = np.moveaxis(axes.grid, dim, -1).reshape(-1, axes.grid.shape[dim])
    ids = np.broadcast_to(united(op, rows), axes.shape[dim])
    return fixed(axes.shape).replaced(dim, ids.copy())


def united(op: Operator, rows: Ints) -> Ints:
    """Unite ids down each column, except 0, and return one for each column."""
    highest: Ints = rows.max(0)
    for row in np.unique(rows, axis=0):
        op.unite(highest[row != 0], row[row != 0])
    return highest
