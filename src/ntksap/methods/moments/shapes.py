"""Functions that only move entries: every field of the moments moves in the same way. Exact."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntksap.methods.moments.table import MOVES, field_by_field, moments_of, rule
from ntksap.methods.moments.uniform import repeats, thin, thinned, widened
from ntksap.methods.moments.value import FIELDS, Moments, Weight, certain, noise

MOVES |= {
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims", "movedim", "squeeze",
    "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile", "contiguous", "clone",
    "chunk", "split", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "unbind", "narrow", "select",
    "index_select", "gather", "take_along_dim", "roll", "flip", "fliplr", "flipud", "rot90", "view_as", "reshape_as",
    "t", "ravel", "diagonal", "diag_embed", "unfold", "detach", "triu", "tril", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "atleast_1d", "atleast_2d", "atleast_3d", "__getitem__", "unsafe_chunk", "unsafe_split",
}  # fmt: skip
_JOINS: tuple[Callable[..., Tensor], ...] = (torch.cat, torch.stack, torch.hstack, torch.vstack, torch.dstack)
_KEEPS = (
    "to", "type_as", "type", "double", "float", "half", "bfloat16", "cpu", "cuda", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "alpha_dropout", "feature_alpha_dropout", "data", "real", "positive",
)  # fmt: skip


def join(function: Callable[..., Tensor], parts: Sequence[Any], *args: Any, **kwargs: Any) -> Moments:
    """Return several tensors as one."""
    known = [moments_of(part) for part in parts]
    like = next((part.like for part, own in zip(known, parts, strict=True) if isinstance(own, Moments)), known[0].like)
    known = [Moments(*(getattr(part, name).to(like) for name in FIELDS)) for part in known]
    joined: Moments = field_by_field(_cat if function is torch.cat else function, known, *args, **kwargs)
    return joined


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Like torch.cat, but returning a view where all parts repeat themselves along another dimension."""
    parts = [part for part in parts if part.shape != (0,)] or parts[:1]  # torch skips empty ones, such as a new cache
    along = dim % parts[0].dim()
    parts = [part for part in parts if part.shape[along]] or parts[:1]
    alike = set.intersection(*(set(repeats(part)) for part in parts)) - {along}
    if not alike:
        return torch.cat(list(parts), dim)
    one = torch.cat([thin(part, alike) for part in parts], dim)
    return one.expand([one.shape[d] if d == along else size for d, size in enumerate(parts[0].shape)])


for _function in _JOINS:
    rule(_function.__name__)(partial(join, _function))


@rule("T", "mT", "H", "mH")
def transposed(x: Moments) -> Moments:
    """For matrices; .T is deprecated for other shapes."""
    return x.each(lambda field: field.mT)


@rule(*_KEEPS)
def keep(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Scoring runs in one dtype, on one device, and without dropout."""
    return x


@rule("pad")
def pad(x: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Moments:
    """Padding with a constant c has E[x²] = c² there; other modes copy entries."""
    if mode != "constant" or not value:
        return x.each(lambda field: functional.pad(field, pad, mode))
    edge = {"square": value * value, "cross": value * value, "mean": value}
    return Moments(*(functional.pad(getattr(x, name), pad, mode, edge.get(name, 0.0)) for name in FIELDS))


@rule("where")
def where(condition: Any, input: Any, other: Any) -> Moments:
    """Entries of two tensors under a known condition; as a method, the condition comes second."""
    if isinstance(condition, Moments):
        condition, input = input, condition
    a, b = moments_of(input), moments_of(other)
    like = (a if isinstance(input, Moments) else b).like
    pairs = [(getattr(a, name).to(like), getattr(b, name).to(like)) for name in FIELDS]
    return Moments(*(torch.where(condition, one, two) for one, two in pairs))


@rule("masked_fill")
def masked_fill(x: Moments, mask: Tensor, value: Any) -> Moments:
    """A masked entry has a known value; a large negative one tells softmax that it is left out."""
    return where(mask, value, x)


@rule("__setitem__")
def set_item(x: Moments, where: Any, value: Any) -> Moments:
    """x[where] = value."""
    put = moments_of(value)
    fields = [getattr(x, name).clone() for name in FIELDS]
    for name, field in zip(FIELDS, fields, strict=True):
        field[where] = getattr(put, name).to(field)
    return Moments(*fields)


@rule("randn_like")
def randn_like(x: Moments, **kwargs: Any) -> Moments:
    """Noise that is drawn in the forward pass."""
    return noise(x.like)


@rule("rand_like")
def rand_like(x: Moments, **kwargs: Any) -> Moments:
    """Noise that is drawn in the forward pass, U(0, 1)."""
    zero = torch.zeros_like(x.like)
    return Moments(zero + 1 / 3, zero + 1 / 4, zero, zero, zero + 1 / 2)


@rule("copy")
def copy(x: Moments, src: Any, non_blocking: bool = False) -> Moments:
    """x.copy_(src)."""
    return moments_of(src).each(lambda field: field.to(x.like).expand_as(x.like))


@rule("fill", "zero")
def fill(x: Moments, value: float = 0.0) -> Moments:
    """x.fill_(value) and x.zero_()."""
    return certain(torch.full_like(x.like, value))


@rule("embedding")
def embedding(ids: Tensor, weight: Moments, *args: Any, **kwargs: Any) -> Moments:
    """Rows of a table. Two inputs have different tokens, so they share nothing."""
    table = Moments(*(getattr(weight, name) for name in FIELDS)) if isinstance(weight, Weight) else moments_of(weight)
    one = thinned(table)
    if all(getattr(one, name).shape[0] == 1 for name in FIELDS):  # all rows are alike: none is looked up
        wide = torch.Size([*ids.shape, table.shape[1]])
        rows = widened(one.each(lambda field: field.view(*[1] * ids.dim(), -1)), wide)
    else:
        rows = table.each(lambda field: functional.embedding(ids, field))
    zero = torch.zeros((), dtype=rows.like.dtype, device=rows.like.device).expand(rows.shape)
    return Moments(rows.square, zero, rows.tangent, zero, rows.mean)
