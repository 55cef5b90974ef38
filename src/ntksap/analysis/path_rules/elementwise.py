"""Sums, products, joins, layers, and everything that is the identity as far as paths are concerned."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntksap._base import InputError
from ntksap.analysis.path_rules.counts import BLOCKED, RULES, Counts, counts, layer, mul, product
from ntksap.net import BOUNDS, IDENTITIES, SOFTMAXES


def _same(x: Counts, *args: Any, **kwargs: Any) -> Counts:
    return x


def _div(x: Any, y: Any, **kwargs: Any) -> Counts:
    if isinstance(y, Counts):
        raise InputError("paths cannot be followed through a division by something that depends on the input")
    return x  # type: ignore[no-any-return]


def _add(x: Any, y: Any, **kwargs: Any) -> Counts:
    if not isinstance(x, Counts):
        x, y = y, x
    if not isinstance(y, Tensor):
        return x  # type: ignore[no-any-return]
    if isinstance(y, Counts):
        return _together(torch.add, [x, y])
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return counts(x.expand(shape).masked_fill(y <= BLOCKED, 0), x.exponent, path=x.path)


def _together(func: Callable[..., Tensor], parts: Sequence[Tensor], joined: bool = False, **kwargs: Any) -> Counts:
    """Bring tensors to one exponent and apply ``func`` to them; tensors not from the input bring no path."""
    known = [part for part in parts if isinstance(part, Counts)]
    live = [part for part in known if part.path] or known
    top = max(part.exponent for part in live)
    top = 0.0 if top == -math.inf else top
    values = [
        part.as_subclass(Tensor) * math.exp(part.exponent - top)
        if isinstance(part, Counts) and any(part is one for one in live)
        else torch.zeros_like(part.as_subclass(Tensor), dtype=live[0].dtype)
        for part in parts
    ]
    result = func(values, **kwargs) if joined else func(*values, **kwargs)
    return counts(result, top, path=any(part.path for part in live))


def _join(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    def rule(tensors: Sequence[Tensor], dim: int | None = None, **kwargs: Any) -> Counts:
        return _together(func, tensors, True, **({} if dim is None else {"dim": dim}))

    return rule


def _sum(x: Counts, *args: Any, **kwargs: Any) -> Counts:
    return counts(torch.sum(x, *args, **kwargs), x.exponent, path=x.path)


def _fill(x: Counts, mask: Tensor, value: Any) -> Counts:
    return counts(x.masked_fill(mask, 0), x.exponent, path=x.path)


def _pad(x: Counts, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Counts:
    return counts(functional.pad(x, pad, mode), x.exponent, path=x.path)


_SAME = [
    *IDENTITIES, *BOUNDS, *SOFTMAXES, "abs", "neg", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout", "to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda",
    "contiguous", "positive", "data",
]  # fmt: skip
"""The identity, as far as paths are concerned."""
_LAYERS = ["linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
RULES.update({
    **dict.fromkeys(_SAME, _same),
    **{name: layer(getattr(functional, name)) for name in _LAYERS},
    "bilinear": lambda x, y, weight, bias=None: product(functional.bilinear)(x, y, weight),
    "matmul": product(torch.matmul),
    "addmm": lambda bias, x, y, **kwargs: product(torch.matmul)(x, y),
    "einsum": product(torch.einsum),
    "mul": mul,
    "div": _div,
    "add": _add,
    "cat": _join(torch.cat),
    "stack": _join(torch.stack),
    "where": lambda condition, x, y: _together(lambda a, b: torch.where(condition, a, b), [x, y]),
    "masked_fill": _fill,
    "pad": _pad,
    **dict.fromkeys(("sum", "mean", "amax"), _sum),
    "embedding": lambda ids, weight, *args, **kwargs: counts(functional.embedding(ids, weight), weight.exponent),
})  # fmt: skip
