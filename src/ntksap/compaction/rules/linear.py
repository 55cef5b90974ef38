"""Operators that sum over an axis of products: linear layers, products of matrices, einsum."""

from typing import Any

import numpy as np

from ntksap.compaction.ids import Axes
from ntksap.compaction.rules.elementwise import broadcast
from ntksap.compaction.rules.table import Operator, rule


@rule("linear")
def linear(op: Operator, x: Axes, weight: Axes, bias: Axes | None = None) -> Axes:
    """``x (…, I) · weight (O, I)ᵀ + bias (O)``."""
    op.unite(x.ids[-1], weight.ids[1])
    if bias is not None:
        op.unite(weight.ids[0], bias.ids[0])
    return Axes((*x.ids[:-1], weight.ids[0]))


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(op: Operator, a: Axes, b: Axes) -> Axes:
    """``a (…, N, K) · b (…, K, M)``, either of which may be a vector."""
    op.unite(a.ids[-1], b.ids[-2] if len(b.ids) > 1 else b.ids[-1])
    stacked = [Axes(axes.ids[:-2]) for axes in (a, b) if len(axes.ids) > 2]
    leading = broadcast(op, stacked).ids if stacked else ()
    rows = a.ids[-2:-1]
    columns = b.ids[-1:] if len(b.ids) > 1 else ()
    return Axes((*leading, *rows, *columns))


@rule("addmm", "baddbmm", "addbmm")
def addmm(op: Operator, added: Axes, a: Axes, b: Axes, **scales: Any) -> Axes:
    """``added + a · b``."""
    return broadcast(op, [matmul(op, a, b), added])


@rule("einsum")
def einsum(op: Operator, equation: str, operands: list[Axes], **path: Any) -> Axes:
    """Unite the axes that share a letter; a letter that the result lacks is summed over."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in equation:
        op.freeze_all(operands, "einsum without letters for its result")
        shape = op.node.meta["val"].shape
        return Axes(tuple(np.zeros(int(size), np.int64) for size in shape))
    ids: dict[str, Any] = {}
    for term, axes in zip(terms, operands, strict=True):
        for letter, own in zip(term, axes.ids, strict=True):
            if letter in ids and len(ids[letter]) == len(own):
                op.unite(ids[letter], own)
            ids[letter] = own if letter not in ids or not ids[letter].any() else ids[letter]
    return Axes(tuple(ids[letter] for letter in right))


@rule("embedding")
def embedding(op: Operator, weight: Axes, indices: Axes, *options: Any, **more: Any) -> Axes:
    """Rows of ``weight`` (entries, D) for ``indices``: the rows stay, D may lose entries."""
    op.freeze(weight.ids[0], "its rows are chosen by index")
    return Axes((*indices.ids, weight.ids[1]))
