"""Pooling: averages with constant weights, and maxima."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from ntksap.methods.moments.table import rule
from ntksap.methods.moments.value import Moments


def average(x: Moments, mean: Callable[[Tensor], Tensor], count: float) -> Moments:
    """Return the moments of a mean over ``count`` positions, of which ``mean`` is the plain function.

    E[(Σ x/n)²] = (E x² − cross)/n + cross: what positions share stays, what they do not averages out.
    """

    def kept(square: Tensor, cross: Tensor) -> Tensor:
        return mean(square - cross) / count + mean(cross)

    return Moments(
        kept(x.square, x.cross), mean(x.cross), kept(x.tangent, x.tangent_cross), mean(x.tangent_cross), mean(x.mean)
    )


@rule("mean")
def mean(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Over dimensions, taken as positions."""
    over = list(range(x.square.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    count = math.prod(x.square.shape[d] for d in over)
    return average(x, lambda field: field.mean(over, keepdim=keepdim), count)


@rule("sum")
def total(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """n times the mean."""
    y = mean(x, dim, keepdim)
    n = x.square.numel() / y.square.numel()
    return Moments(y.square * n * n, y.cross * n * n, y.tangent * n * n, y.tangent_cross * n * n, y.mean * n)


def _windows(function: Callable[..., Tensor], x: Moments, size: Any, *args: Any, **kwargs: Any) -> Moments:
    dims = int(function.__name__[-2])
    count = size**dims if isinstance(size, int) else math.prod(size)
    return average(x, lambda field: function(field, size, *args, **kwargs), count)


def _adaptive(function: Callable[..., Tensor], x: Moments, size: Any) -> Moments:
    y = function(x.mean, size)
    return average(x, lambda field: function(field, size), max(1.0, x.mean.numel() / y.numel()))


def _maximum(
    function: Callable[..., Tensor],
    x: Moments,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Moments:
    """One entry of each window passes; all have the same chance. Approximate: the entry that passes is a large one."""
    return x.each(lambda f: function(f, kernel_size, stride, padding, ceil_mode, count_include_pad=False))


def _maximum_1d(
    x: Moments, kernel_size: int, stride: Any = None, padding: int = 0, *args: Any, **kwargs: Any
) -> Moments:
    """As in two dimensions."""
    y = x.each(lambda field: field.unsqueeze(-1))
    stride = kernel_size if stride is None else stride
    pooled = _maximum(functional.avg_pool2d, y, (_one(kernel_size), 1), (_one(stride), 1), (_one(padding), 0))
    return pooled.each(lambda field: field.squeeze(-1))


def _one(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


for _dims in (1, 2, 3):
    for _prefix, _pool in (("avg_pool", _windows), ("adaptive_avg_pool", _adaptive)):
        _name = f"{_prefix}{_dims}d"
        rule(_name)(partial(_pool, getattr(functional, _name)))
    _plain = getattr(functional, f"adaptive_avg_pool{_dims}d")
    rule(f"adaptive_max_pool{_dims}d")(partial(lambda f, x, size: x.each(lambda field: f(field, size)), _plain))
rule("max_pool1d")(_maximum_1d)
rule("max_pool2d")(partial(_maximum, functional.avg_pool2d))
rule("max_pool3d")(partial(_maximum, functional.avg_pool3d))
