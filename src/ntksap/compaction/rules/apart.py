"""Channels one by one, for those who follow them and remove none.

Where channels are removed, the parts of a chunk must stay the same size and the code that cuts an axis at a place
must find it there, so the rules of the table couple channels or freeze them. None of that is needed here: operators
that move entries are run on the ids of all entries, so that a channel keeps its own id through chunks, slices and
views. An axis that a view has cut in several is a `Split` until the next view makes it one again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from ntksap.compaction.ids import Axes, Ints, fixed
from ntksap.compaction.rules import convolution, elementwise, linear, norms, reductions, shape
from ntksap.compaction.rules.table import RULES, Operator

_BY_INDEX = {"index", "index_select"}
_BY_UNKNOWN = {"gather", "take_along_dim", "scatter", "index_add"}
_MOVERS = (shape.move, shape.split, shape.pick)
_LIKE = {"expand_as", "view_as", "reshape_as"}
"""Operators whose other tensors give a shape and no entries."""


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


def follow_apart(op: Operator, args: Any, kwargs: Any) -> Any:
    """Return the ids of an operator's result; channels are united only where the operator combines them.

    A rule for which there is nothing better here is that of the table, on axes that are one again. Where an operator
    only moves channels, and their ids are lost nevertheless, ``op.lost`` is set.
    """
    rule = RULES[op.name]
    if rule in _MOVERS or rule is elementwise.elementwise:
        args, kwargs = _of_signals(op, args, kwargs)
    exact = _EXACT.get(rule)
    result = None if exact is None else exact(op, *args, **kwargs)
    if result is None:
        result = rule(op, *_settled(op, args), **_settled(op, kwargs))
        signal = args[0] if op.name in _BY_UNKNOWN else (args, kwargs)
        op.lost = rule in _MOVERS and _any(signal) and not _any(result)
    return result


def _of_signals(op: Operator, args: Any, kwargs: Any) -> Any:
    """Return the arguments without the ids of parameters: a position or a slope that is added is no other channel."""
    flat, spec = tree_flatten((list(args), dict(kwargs)))
    nodes = tree_leaves((list(op.node.args), dict(op.node.kwargs)))
    moving = [isinstance(node, fx.Node) and node in op.signals for node in nodes]
    size = None if RULES[op.name] in _MOVERS else tuple(op.node.meta["val"].shape)
    if any(live and (size is None or axes.shape == size) for live, axes in zip(moving, flat, strict=True)):
        flat = [fixed(v.shape) if isinstance(v, Axes) and not live else v for v, live in zip(flat, moving, strict=True)]
    return tree_unflatten(flat, spec)


def _any(values: Any) -> bool:
    return any(axes.present.any() for axes in tree_leaves(values) if isinstance(axes, Axes))


def _moved(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that moves entries on their ids; None if they are not one array, or an index is not known."""
    if op.name in _BY_UNKNOWN:
        return None
    nodes: Any = (op.node.args, dict(op.node.kwargs))
    if op.name in ("pad", "constant_pad_nd"):
        args, kwargs, nodes = args[:2], {}, (op.node.args[:2], {})  # what it is padded with is no channel
    flat, spec = tree_flatten((list(args), kwargs))
    given = tree_leaves(nodes)
    views: tuple[tuple[Operator, Ints], ...] = ()
    for place, value in enumerate(flat):
        if not isinstance(value, Axes):
            continue
        if place and op.name in _BY_INDEX:
            filled = _constant(op, given[place])
        elif place and op.name in _LIKE:
            filled = torch.zeros(value.shape, dtype=torch.float64, device="cpu")
        else:
            filled = _entries(value)
            views += value.views if isinstance(value, Split) else ()
        if filled is None:
            return None
        flat[place] = filled
    args, kwargs = tree_unflatten(flat, spec)
    result = shape.run(op.node, args, kwargs)
    if isinstance(result, tuple | list):
        return [_placed(op, part, views) for part in result]
    return _placed(op, result, views)


def _entries(axes: Axes) -> Tensor | None:
    """Return the id of each entry; None if entries have several, those of different axes."""
    if isinstance(axes, Split):
        return torch.from_numpy(np.broadcast_to(axes.grid, axes.shape).astype(np.float64))
    carrying = [dim for dim, ids in enumerate(axes.ids) if ids.any()]
    if len(carrying) > 1:
        return None
    return shape.spread(axes, len(axes.ids) - carrying[0] if carrying else len(axes.ids) + 1)


def _constant(op: Operator, node: fx.Node) -> Tensor | None:
    """Return what a node holds if that does not depend on the inputs."""
    if node in op.known:
        return op.known[node].detach().cpu()
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return None
    values = {source: _constant(op, source) for source in node.all_input_nodes}
    if any(value is None for value in values.values()):
        return None
    result: Tensor = shape.run(node, *tree_map_only(fx.Node, values.__getitem__, (node.args, dict(node.kwargs))))
    return result


def _placed(op: Operator, entries: Tensor, views: Sequence[tuple[Operator, Ints]]) -> Axes:
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


def _settled(op: Operator, values: Any) -> Any:
    return tree_map_only(Split, lambda axes: _one_axis(op, axes), values)


def _one_axis(op: Operator, axes: Split) -> Axes:
    """Put the channels on the axis that views say is theirs (heads, …), and unite those along the others."""
    for view, grid in axes.views:
        shape.read(view, grid)
    found = _placed(op, torch.from_numpy(axes.grid), axes.views)
    if isinstance(found, Split):
        dim, ids = shape.read(op, found.grid)
        if dim is None:  # one channel, taken by its number: any axis of size 1 may be that of channels
            return Axes(tuple(ids if size == 1 else np.zeros(size, np.int64) for size in axes.shape))
    else:
        dim = next(dim for dim, own in enumerate(found.ids) if own.any())
        ids = found.ids[dim]
    return fixed(axes.shape).replaced(dim, ids)


def _along(op: Operator, axes: Axes, dim: int) -> Axes:
    """Put the channels of a `Split` on one axis, and unite those along the others."""
    if not isinstance(axes, Split):
        return axes
    rows = np.moveaxis(axes.grid, dim, -1).reshape(-1, axes.grid.shape[dim])
    ids = np.broadcast_to(_united(op, rows), axes.shape[dim])
    return fixed(axes.shape).replaced(dim, ids.copy())


def _united(op: Operator, rows: Ints) -> Ints:
    """Unite ids down each column, except 0, and return one for each column."""
    highest: Ints = rows.max(0)
    for row in np.unique(rows, axis=0):
        op.unite(highest[row != 0], row[row != 0])
    return highest


def _combined(op: Operator, *args: Any, **kwargs: Any) -> Axes | None:
    """Unite tensors entry by entry if their ids are on the same axes."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Axes) and value.present.any()]
    whole = [t for t in tensors if isinstance(t, Split) and t.shape == tuple(op.node.meta["val"].shape)]
    if not whole:
        return None
    grids = [_grid(one) for one in tensors]
    first = whole[0]
    if any(grid is None or grid.size != first.grid.size for grid in grids):
        return None
    depth = first.grid.ndim
    aligned = [grid.reshape([1] * (depth - grid.ndim) + list(grid.shape)) for grid in grids if grid is not None]
    if any(grid.shape != first.grid.shape for grid in aligned):
        return None
    _united(op, np.stack([grid.reshape(-1) for grid in aligned]))
    return first


def _grid(axes: Axes) -> Ints | None:
    if isinstance(axes, Split):
        return axes.grid
    carrying = [dim for dim, ids in enumerate(axes.ids) if ids.any()]
    if len(carrying) != 1:
        return None
    return axes.ids[carrying[0]].reshape([-1 if dim == carrying[0] else 1 for dim in range(len(axes.ids))])


def _summed(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Any:
    """Unite what is reduced to one entry; if nothing is left to tell apart, all channels are mixed."""
    if not isinstance(x, Split):
        return None
    dims, keep = reductions.reduced_dims(op, x, args, kwargs)
    value = op.node.meta["val"]
    first = value[0] if isinstance(value, tuple | list) else value
    kept = [dim for dim in range(len(x.ids)) if dim not in dims]
    rows = x.grid.transpose([*sorted(dims), *kept]).reshape(-1, *(x.grid.shape[dim] for dim in kept))
    result: Axes = fixed(first.shape)
    if rows[0].size > 1:
        ids = _united(op, rows.reshape(len(rows), -1)).reshape(
            [1 if d in dims else s for d, s in enumerate(x.grid.shape)]
        )
        ids = ids if keep else ids.reshape([ids.shape[dim] for dim in kept])
        result = _placed(op, torch.from_numpy(np.broadcast_to(ids, first.shape).copy()), x.views)
    return [result for _ in value] if isinstance(value, tuple | list) else result


def _unchanged(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Axes | None:
    return x if isinstance(x, Split) else None


def _pooled(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Any:
    """Keep the channels of a `Split` if none of them are on the axes of space."""
    if not isinstance(x, Split) or max(x.grid.shape[-reductions.POOLING[op.name] :]) > 1:
        return None
    value = op.node.meta["val"]
    first = value[0] if isinstance(value, tuple | list) else value
    result = Split(fixed(first.shape).ids, x.grid, x.views)
    return [result for _ in value] if isinstance(value, tuple | list) else result


def _linear(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Any:
    return RULES[op.name](op, _along(op, x, -1), *args, **kwargs)


def _convolved(op: Operator, x: Axes, weight: Axes, *args: Any, **kwargs: Any) -> Any:
    return RULES[op.name](op, _along(op, x, len(x.ids) - len(weight.ids) + 1), weight, *args, **kwargs)


def _multiplied(op: Operator, a: Axes, b: Axes) -> Any:
    """``a (…, K) · b (K, M)`` is a linear layer; other products are left to the table."""
    if isinstance(b, Split) or len(b.ids) != 2:
        return None
    return RULES[op.name](op, _along(op, a, -1), b)


_EXACT: dict[Callable[..., Any], Callable[..., Any]] = {
    shape.move: _moved,
    shape.split: _moved,
    shape.pick: _moved,
    elementwise.elementwise: _combined,
    elementwise.prelu: _unchanged,
    reductions.reduction: _summed,
    reductions.along: _unchanged,
    reductions.spatial: _pooled,
    norms.batch_norm: _unchanged,
    norms.group_norm: _unchanged,
    norms.layer_norm: _unchanged,
    linear.linear: _linear,
    linear.matmul: _multiplied,
    convolution.convolution: _convolved,
    convolution.transposed: _convolved,
}
"""{rule of the table: what to do in its place}; a rule that a user has put in its place is taken as it is."""
