"""Channels one by one, for those who follow them and remove none.

Where channels are removed, the parts of a chunk must stay the same size and the code that cuts an axis at a place
must find it there, so the rules of the table couple channels or freeze them. None of that is needed here: operators
that move entries are run on the ids of all entries, so that a channel keeps its own id through chunks, slices and
views. An axis that a view has cut in several is a `Split` until the next view makes it one again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from ntksap.compaction.ids import Axes, Ints, fixed
from ntksap.compaction.rules import convolution, elementwise, linear, norms, reductions, shape
from ntksap.compaction.rules.split import Split, entries_of, grid_of, on_axis, placed, settled, united
from ntksap.compaction.rules.table import RULES, Operator

_BY_INDEX = {"index", "index_select"}
_BY_UNKNOWN = {"gather", "take_along_dim", "scatter", "index_add"}
_MOVERS = (shape.move, shape.split, shape.pick)
_LIKE = {"expand_as", "view_as", "reshape_as"}
"""Operators whose other tensors give a shape and no entries."""


def follow_apart(op: Operator, args: Any, kwargs: Any) -> Any:
    """Return the ids of an operator's result; channels are united only where the operator combines them.

    A rule for which there is nothing better here is that of the table, on axes that are one again. Where an operator
    only moves channels, ``op.moved`` is set, or ``op.lost`` if their ids cannot follow.
    """
    rule = RULES[op.name]
    op.moved = rule in _MOVERS
    if op.moved or rule is elementwise.elementwise:
        args, kwargs = _of_signals(op, args, kwargs)
    exact = _EXACT.get(rule)
    result = None if exact is None else exact(op, *args, **kwargs)
    if result is None:
        result = rule(op, *settled(op, args), **settled(op, kwargs))
        signal = args[0] if op.name in _BY_UNKNOWN else (args, kwargs)
        op.lost = op.moved and _any(signal) and not _any(result)
        op.moved = False  # the table's rules may leave out channels that are there
    return result


def _of_signals(op: Operator, args: Any, kwargs: Any) -> Any:
    """Return the arguments without the ids of parameters: a position or a slope that is added is no other channel."""
    flat, spec = tree_flatten((list(args), dict(kwargs)))
    nodes = tree_leaves((list(op.node.args), dict(op.node.kwargs)))
    moving = [isinstance(node, fx.Node) and node in op.signals for node in nodes]
    size = None if op.moved else tuple(op.node.meta["val"].shape)
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
            filled = entries_of(value)
            views += value.views if isinstance(value, Split) else ()
        if filled is None:
            return None
        flat[place] = filled
    args, kwargs = tree_unflatten(flat, spec)
    result = shape.run(op.node, args, kwargs)
    if isinstance(result, tuple | list):
        return [placed(op, part, views) for part in result]
    return placed(op, result, views)


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


def _combined(op: Operator, *args: Any, **kwargs: Any) -> Axes | None:
    """Unite tensors entry by entry if their ids are on the same axes."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Axes) and value.present.any()]
    whole = [t for t in tensors if isinstance(t, Split) and t.shape == tuple(op.node.meta["val"].shape)]
    if not whole:
        return None
    grids = [grid_of(one) for one in tensors]
    first = whole[0]
    if any(grid is None or grid.size != first.grid.size for grid in grids):
        return None
    depth = first.grid.ndim
    aligned = [grid.reshape([1] * (depth - grid.ndim) + list(grid.shape)) for grid in grids if grid is not None]
    if any(grid.shape != first.grid.shape for grid in aligned):
        return None
    united(op, np.stack([grid.reshape(-1) for grid in aligned]))
    return first


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
        ids = united(op, rows.reshape(len(rows), -1)).reshape(
            [1 if d in dims else s for d, s in enumerate(x.grid.shape)]
        )
        ids = ids if keep else ids.reshape([ids.shape[dim] for dim in kept])
        result = placed(op, torch.from_numpy(np.broadcast_to(ids, first.shape).copy()), x.views)
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
    return RULES[op.name](op, on_axis(op, x, -1), *args, **kwargs)


def _convolved(op: Operator, x: Axes, weight: Axes, *args: Any, **kwargs: Any) -> Any:
    return RULES[op.name](op, on_axis(op, x, len(x.ids) - len(weight.ids) + 1), weight, *args, **kwargs)


def _multiplied(op: Operator, a: Axes, b: Axes) -> Any:
    """``a (…, K) · b (K, M)`` is a linear layer; other products are left to the table."""
    if isinstance(b, Split) or len(b.ids) != 2:
        return None
    return RULES[op.name](op, on_axis(op, a, -1), b)


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
