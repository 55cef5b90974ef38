"""From removed units to kept indices, and to the attributes that a module's code takes its sizes from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntksap.compaction.ids import Axes, Ints
from ntksap.compaction.links import Links
from ntksap.compaction.rules import Operator
from ntksap.compaction.rules.shape import is_count

Attributes = dict[str, dict[str, Any]]
"""{path of a submodule: {attribute: new value}}."""

_NO_SIZE = ("idx", "index", "layer", "kernel", "stride", "padding", "dilation", "version")
"""Parts of the names of attributes that are not sizes, whatever their values."""


def kept_indices(links: Links, removed: Collection[int]) -> dict[str, dict[int, Tensor]]:
    """Return {parameter or buffer: {dimension: indices that are kept}} where a unit among ``removed`` lies."""
    kept: dict[str, dict[int, Tensor]] = {}
    gone = links.units.marks(removed)
    for node, name in links.graph.stored.items():
        for dim, ids in enumerate(links.axes[node].ids if node in links.axes else ()):
            stays = ~gone[links.units.roots(ids)]
            if not stays.all():
                kept.setdefault(name, {})[dim] = torch.from_numpy(np.flatnonzero(stays))
    return kept


def code_attributes(links: Links, removed: Collection[int]) -> Attributes:
    """Return the attributes that hold the sizes named in the code of the module's parts, with their new values."""
    found: Attributes = {}
    gone = links.units.marks(removed)

    def left(ids: Ints) -> int:
        return int((~gone[links.units.roots(ids)]).sum())

    for op in links.sized:
        axes = links.axes[op.node]
        if isinstance(axes, Axes):
            old = list(axes.shape)
            new = [left(ids) for ids in axes.ids]
        else:
            dim = next(d for d, (a, b) in enumerate(zip(axes[0].ids, axes[-1].ids, strict=True)) if a is not b)
            old = [len(part.ids[dim]) for part in axes]
            new = [left(part.ids[dim]) for part in axes]
        values = _renamed(op, old, new)
        if values:
            found.setdefault(op.path, {}).update(values)
    return found


def _renamed(op: Operator, old: Sequence[int], new: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of an operator's owner that are one of the sizes that change."""
    changed = {a: b for a, b in zip(old, new, strict=True) if a != b}
    unchanged = {a for a, b in zip(old, new, strict=True) if a == b}
    values: dict[str, Any] = {}
    for name, value in vars(op.owner).items():
        if type(value) is int and value in changed and not any(word in name for word in _NO_SIZE):
            counted = [n for n, v in vars(op.owner).items() if type(v) is int and v == value and is_count(n)]
            if name in counted or (not counted and value not in unchanged):
                values[name] = changed[value]
        elif isinstance(value, tuple | list) and list(value) == list(old) and list(new) != list(old):
            values[name] = type(value)(new)
    return values


def merged(first: Mapping[str, Mapping[str, Any]], second: Mapping[str, Mapping[str, Any]]) -> Attributes:
    """Return both sets of attributes as one; where they differ, the second wins."""
    return {path: {**first.get(path, {}), **second.get(path, {})} for path in {**first, **second}}
