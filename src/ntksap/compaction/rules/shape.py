"""Operators that only move entries: the same operator, run on the ids, says where they go."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ntksap.compaction.attention import loses_heads
from ntksap.compaction.graph import operator_name
from ntksap.compaction.ids import Axes, Ints, fixed
from ntksap.compaction.rules.table import Operator, rule

VIEWS = {"view", "reshape", "_unsafe_view", "unflatten", "expand"}
"""Operators whose arguments name sizes; a size of −1 follows by itself."""

MOVES = {
    "flatten", "permute", "transpose", "t", "numpy_T", "unsqueeze", "squeeze", "cat", "concat", "stack", "movedim",
    "swapaxes", "swapdims", "flip", "repeat", "repeat_interleave", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle",
    "constant_pad_nd", "pad", "expand_as", "view_as", "reshape_as", "unfold", "im2col", "native_channel_shuffle",
    "mT", "adjoint", "ravel", "tile", "diagonal",
}  # fmt: skip


@rule(*VIEWS, *MOVES)
def move(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """Carry the ids of each axis to the axis of the result that they end up on."""
    if op.name in ("pad", "constant_pad_nd"):
        args = (args[0], args[1])  # the padding is not a channel of any layer, whatever its value
        kwargs = {}
    flat, spec = tree_flatten((args, kwargs))
    tensors = [index for index, value in enumerate(flat) if isinstance(value, Axes)]
    shape = tuple(int(size) for size in op.node.meta["val"].shape)
    carried: dict[int, Ints] = {}
    depth = max(len(flat[index].ids) for index in tensors)
    for back in range(depth, 0, -1):
        own = [flat[i].ids[-back] for i in tensors if len(flat[i].ids) >= back]
        if not any(ids.any() for ids in own):
            continue
        filled = list(flat)
        for index in tensors:
            filled[index] = spread(flat[index], back)
        moved = run(op.node, *tree_unflatten(filled, spec))
        dim, ids = read(op, moved.numpy().astype(np.int64))
        if dim is None or _lost(op, np.concatenate(own), moved):
            for lone in own:
                op.freeze(lone, "it has no axis of its own left" if dim is None else "a part of it is left out")
            if dim is None:
                continue
        if dim in carried:
            kept, other = (carried[dim], ids) if op.units.free(carried[dim]).any() else (ids, carried[dim])
            op.freeze(other, "merged with another axis")
            carried[dim] = kept
        else:
            carried[dim] = ids
    _note_sizes(op, carried)
    return Axes(tuple(carried.get(dim, np.zeros(size, np.int64)) for dim, size in enumerate(shape)))


def spread(axes: Axes, back: int) -> Tensor:
    """Return the ids of one axis, counted from the end, as a tensor of the full shape."""
    if len(axes.ids) < back:
        return torch.zeros(axes.shape, dtype=torch.float64, device="cpu")
    size = [1] * len(axes.ids)
    size[-back] = -1
    return torch.from_numpy(axes.ids[-back]).double().view(size).expand(axes.shape).contiguous()


def run(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Run a node's operator on these arguments."""
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _lost(op: Operator, present: Ints, moved: Tensor) -> bool:
    """Return whether ids that went in did not come out."""
    there = op.units.marks([0])
    there[moved.numpy().astype(np.int64).ravel()] = True
    return not there[present].all()


def read(op: Operator, grid: Ints) -> tuple[int | None, Ints]:
    """Return the axis of ``grid`` that the ids are on and the id of each of its indices; None for no axis.

    Where an axis was split in two, ids on one of them stay apart and those along the other are united.
    """
    varying = [dim for dim in range(grid.ndim) if grid.shape[dim] > 1 and (grid != grid.take([0], dim)).any()]
    core = grid[tuple(slice(None) if dim in varying else 0 for dim in range(grid.ndim))]
    if not varying:
        return None, grid.reshape(-1)[:1]
    if len(varying) == 1:
        return varying[0], core
    roots = op.units.roots(core.reshape(-1)).reshape(core.shape)
    natural = [k for k in range(core.ndim) if _constant_elsewhere(roots, k)]
    chosen = natural[0] if natural else _choose(op, core, varying)
    rows = np.moveaxis(core, chosen, -1).reshape(-1, core.shape[chosen])
    return varying[chosen], op.unite_rows(rows)


def _constant_elsewhere(roots: Ints, dim: int) -> bool:
    rows = np.moveaxis(roots, dim, -1).reshape(-1, roots.shape[dim])
    return bool((rows == rows[0]).all())


def _choose(op: Operator, core: Ints, varying: Sequence[int]) -> int:
    """Choose the axis that keeps its ids apart: heads, else the size that follows by itself, else the largest."""
    sizes = _named_sizes(op.node) if op.name in VIEWS else {}
    if isinstance(op.owner, nn.MultiheadAttention):  # (heads, size of a head), or (queries, keys, values; heads)
        return core.ndim - 2 if core.shape[-1] == op.owner.head_dim else core.ndim - 1
    counts = [k for k in range(core.ndim) if _counts_heads(op.owner, core.shape[k])]
    if counts and sizes:
        return counts[-1]  # after three parts, an axis of three is that of the heads
    following = [k for k, dim in enumerate(varying) if sizes.get(dim) == -1]
    if following:
        return following[0]
    classes = [len(np.unique(_united(np.moveaxis(core, k, -1).reshape(-1, core.shape[k])))) for k in range(core.ndim)]
    return int(np.argmax(classes))


def _united(rows: Ints) -> Ints:
    """Return for each column a number that columns share if they have an id in common (one pass, enough to compare)."""
    lowest: Ints = rows.min(0)
    return lowest


def _counts_heads(owner: nn.Module, size: int) -> bool:
    return any(value == size and is_count(name) for name, value in vars(owner).items() if type(value) is int)


def is_count(name: str) -> bool:
    """Return whether an attribute's name says that it counts heads.

    >>> is_count("num_heads"), is_count("n_head"), is_count("head_dim"), is_count("all_head_size")
    (True, True, False, False)
    """
    return "head" in name and not any(word in name for word in ("dim", "size", "width", "channels", "groups"))


def _named_sizes(node: fx.Node) -> dict[int, int]:
    """Return {dimension of the result: the size that the operator's arguments name for it}."""
    given = next((value for value in node.args[1:] if isinstance(value, tuple | list)), ())
    start = 0
    if operator_name(node) == "unflatten":
        start = int(node.args[1]) % node.args[0].meta["val"].dim()  # type: ignore[arg-type, union-attr]
    return {start + dim: int(size) for dim, size in enumerate(given)}


def _note_sizes(op: Operator, carried: dict[int, Ints]) -> None:
    """Tell the operator about axes whose size stands in the arguments."""
    if isinstance(op.owner, nn.MultiheadAttention):
        for ids in () if loses_heads(op.owner) else carried.values():
            op.freeze(ids, "attention with other keys, values or added ones is left whole")
        return
    if op.name not in VIEWS:
        return
    sizes = _named_sizes(op.node)
    for dim, ids in carried.items():
        if sizes.get(dim, -1) != -1:
            op.carry_size(ids)


@rule("chunk", "split", "split_with_sizes", "tensor_split", "unbind")
def split(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> list[Axes]:
    """Cut an axis into parts; parts of equal size lose the same places, so that the cut stays where it is."""
    shapes = [tuple(part.shape) for part in op.node.meta["val"]]
    if op.name == "unbind":
        dim = (args[0] if args else kwargs.get("dim", 0)) % len(x.ids)
        op.freeze(x.ids[dim], "its entries are taken apart")
        return [Axes((*x.ids[:dim], *x.ids[dim + 1 :])) for _ in shapes]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(x.ids)
    ids = x.ids[dim]
    lengths = [int(shape[dim]) for shape in shapes]
    if len(lengths) > 1 and ids.any():
        if len(set(lengths)) == 1:
            op.unite_rows(ids.reshape(len(lengths), -1))
        if op.name != "chunk" and not isinstance(op.owner, nn.MultiheadAttention):
            op.carry_size(ids)
    places = np.split(ids, np.cumsum(lengths)[:-1])
    return [x.replaced(dim, part) for part in places]


@rule("slice", "narrow", "select", "index_select", "roll", "index", "gather", "take_along_dim", "scatter", "index_add")
def pick(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Axes:
    """Take entries by position; a position means another channel once channels are gone, so that axis stays."""
    operator = op.name
    if operator == "index":
        indexed = {dim for dim, index in enumerate(args[0]) if index is not None}
        if len(indexed) > 1:
            op.freeze_all([x, args], "taken by position")
            return fixed(op.node.meta["val"].shape)
    elif operator == "roll":
        dims = args[1] if len(args) > 1 else kwargs.get("dims", [])
        indexed = {dim % len(x.ids) for dim in (dims or range(len(x.ids)))}
    elif operator in ("gather", "take_along_dim", "scatter", "index_add"):
        op.freeze_all([x, args, kwargs], "taken by position")
        return fixed(op.node.meta["val"].shape)
    else:
        dim = (args[0] if args else kwargs.get("dim", 0)) % len(x.ids)
        whole = operator in ("slice", "narrow") and op.node.meta["val"].shape[dim] == x.shape[dim]
        indexed = set() if whole else {dim}
    for dim in indexed:
        op.freeze(x.ids[dim], "a part of it is taken by position")
    shape = op.node.meta["val"].shape
    if operator == "select":
        return Axes(tuple(ids for dim, ids in enumerate(x.ids) if dim not in indexed))
    if operator == "index" and len(shape) != len(x.ids):
        dim = min(indexed)
        extra = len(shape) - len(x.ids) + 1
        return Axes((*x.ids[:dim], *fixed(shape[dim : dim + extra]).ids, *x.ids[dim + 1 :]))
    return Axes(tuple(np.zeros(int(shape[d]), np.int64) if d in indexed else ids for d, ids in enumerate(x.ids)))
