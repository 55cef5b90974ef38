"""Functions that only move entries: each field of the moments moves alike. Exact."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntksap.methods.moments.table import field_by_field, moments_of, rule
from ntksap.methods.moments.uniform import thinned, widened
from ntksap.methods.moments.value import FIELDS, Moments

_METHODS = (
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims", "movedim", "squeeze",
    "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile", "contiguous", "clone",
    "chunk", "split", "tensor_split", "unbind", "narrow", "select", "index_select", "gather", "roll", "flip", "view_as",
    "reshape_as", "t", "ravel", "diagonal", "unfold", "detach", "__getitem__",
)  # fmt: skip
_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    functional.pixel_shuffle,
    functional.pixel_unshuffle,
    functional.channel_shuffle,
)
_JOINS: tuple[Callable[..., Tensor], ...] = (torch.cat, torch.stack, torch.hstack, torch.vstack)
_KEEPS = (
    "to", "type_as", "type", "double", "float", "half", "bfloat16", "cpu", "cuda", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "alpha_dropout", "feature_alpha_dropout", "data",
)  # fmt: skip


def _join(function: Callable[..., Tensor], parts: Sequence[Any], *args: Any, **kwargs: Any) -> Moments:
    known = [moments_of(part) for part in parts]
    joined: Moments = field_by_field(function, known, *args, **kwargs)
    return joined


for _name in _METHODS:
    rule(_name)(partial(field_by_field, getattr(torch.Tensor, _name)))
for _function in _FUNCTIONS:
    rule(_function.__name__)(partial(field_by_field, _function))
for _function in _JOINS:
    rule(_function.__name__)(partial(_join, _function))
rule("concat", "concatenate")(partial(_join, torch.cat))


@rule("T", "mT")
def transposed(x: Moments) -> Moments:
    """Of matrices; what .T makes of other shapes is deprecated."""
    return x.each(lambda field: field.mT)


@rule(*_KEEPS)
def keep(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Scoring runs in one dtype, on one device, and without dropout."""
    return x


@rule("pad")
def pad(x: Moments, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Moments:
    """Padding by a constant c has E[x²] = c² there; other modes copy entries."""
    if mode != "constant" or not value:
        return x.each(lambda field: functional.pad(field, widths, mode))
    edge = {"square": value * value, "cross": value * value, "mean": value}
    return Moments(*(functional.pad(getattr(x, name), widths, mode, edge.get(name, 0.0)) for name in FIELDS))


@rule("masked_fill")
def masked_fill(x: Moments, where: Tensor, value: Any) -> Moments:
    """A masked entry has a known value, with which softmax sees that it is left out."""
    filled = {"mean": float(value)}
    return Moments(*(getattr(x, name).masked_fill(where, filled.get(name, 0.0)) for name in FIELDS))


@rule("embedding")
def embedding(ids: Tensor, table: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Rows of a table. Two inputs have other tokens, so they share nothing."""
    one = thinned(table)
    if all(getattr(one, name).shape[0] == 1 for name in FIELDS):  # all rows are alike: none is looked up
        wide = torch.Size([*ids.shape, table.shape[1]])
        rows = widened(one.each(lambda field: field.view(*[1] * ids.dim(), -1)), wide)
    else:
        rows = table.each(lambda field: functional.embedding(ids, field))
    zero = torch.zeros((), dtype=rows.like.dtype, device=rows.like.device).expand(rows.shape)
    return Moments(rows.square, zero, rows.tangent, zero, rows.mean)
