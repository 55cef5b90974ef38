"""Pooling: averages with constant weights, maxima, and sums along an index."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntksap.methods.moments.linear import add
from ntksap.methods.moments.table import moments_of, rule
from ntksap.methods.moments.uniform import thin, widened
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
def mean(x: Moments, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None) -> Moments:
    """Over dimensions, taken as positions."""
    over = _over(x, dim if axis is None else axis)
    count = math.prod(x.square.shape[d] for d in over)
    return average(x, lambda field: field.mean(over, keepdim=keepdim), count)


@rule("sum")
def total(x: Moments, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None) -> Moments:
    """n times the mean."""
    y = mean(x, dim, keepdim, axis=axis)
    n = x.square.numel() / y.square.numel()
    return Moments(y.square * n * n, y.cross * n * n, y.tangent * n * n, y.tangent_cross * n * n, y.mean * n)


@rule("var")
def variance(
    x: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = 1, axis: Any = None
) -> Moments:
    """A statistic, held at its mean: the mean of the squares minus the square of the mean."""
    over = _over(x, dim if not isinstance(dim, bool) and axis is None else axis)
    centre = x.mean.mean(over, keepdim=keepdim)
    return moments_of((x.square.detach().mean(over, keepdim=keepdim) - centre.square()).clamp_min(0))


@rule("std")
def deviation(x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """The root of `variance`."""
    return moments_of(variance(x, *args, **kwargs).mean.sqrt())


@rule("norm", "linalg_norm", "linalg_vector_norm")
def norm(x: Moments, p: Any = 2, dim: Any = None, keepdim: bool = False, ord: Any = 2, dtype: Any = None) -> Moments:
    """A statistic, held at its mean size: the root of the sum of squares."""
    if {p, ord} - {2, None, "fro"}:
        raise NotImplementedError(f"norms of order {p if ord == 2 else ord} have no moments")
    return moments_of(x.square.detach().sum(_over(x, dim), keepdim=keepdim).sqrt())


def _over(x: Moments, dim: Any) -> list[int]:
    return list(range(x.square.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)


@rule("index_add", "scatter_add")
def index_add(x: Moments, dim: int, index: Tensor, source: Any = None, *, src: Any = None, alpha: float = 1) -> Moments:
    """x + sums over the entries of ``source`` that an index puts together, such as the neighbours of a node.

    As in `average`, they share the cross moments and nothing else.
    """
    put = moments_of(source if src is None else src)
    name = "scatter_add" if index.dim() > 1 or x.square.dim() == 1 else "index_add"

    def collect(field: Tensor) -> Tensor:
        base = torch.zeros_like(x.square)
        put_in: Tensor = getattr(base, name)(dim, index, field.to(base))
        return put_in * alpha

    def both(square: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
        shared = collect(cross.clamp_min(1e-300).sqrt()).square()
        return collect(square - cross) * alpha + shared, shared

    return add(x, Moments(*both(put.square, put.cross), *both(put.tangent, put.tangent_cross), collect(put.mean)))


@rule("interpolate", "upsample")
def interpolate(
    x: Moments, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *args: Any, **kwargs: Any
) -> Moments:
    """Exact for the nearest entry; between entries, neighbours are treated as equal, so approximate."""
    dims = len(x.shape) - 2
    return _by_channel(
        dims, x, lambda one: one.each(lambda f: functional.interpolate(f, size, scale_factor, mode, *args, **kwargs))
    )


def _by_channel(dims: int, x: Moments, pool: Callable[[Moments], Moments]) -> Moments:
    """Return ``pool(x)``, which changes the last ``dims`` dimensions, computed once for channels that are alike."""
    y = pool(x.each(lambda field: thin(field, range(field.dim() - dims))))
    return widened(y, torch.Size((*x.shape[:-dims], *y.square.shape[-dims:])))


def _dims(function: Callable[..., Tensor]) -> int:
    return int(function.__name__[-2])  # as in avg_pool2d


def _windows(function: Callable[..., Tensor], x: Moments, kernel_size: Any, *args: Any, **kwargs: Any) -> Moments:
    dims = _dims(function)
    count = kernel_size**dims if isinstance(kernel_size, int) else math.prod(kernel_size)
    return _by_channel(dims, x, lambda one: average(one, lambda f: function(f, kernel_size, *args, **kwargs), count))


def _adaptive(function: Callable[..., Tensor], x: Moments, output_size: Any) -> Moments:
    def pool(one: Moments) -> Moments:
        count = one.mean.numel() / function(one.mean, output_size).numel()
        return average(one, lambda field: function(field, output_size), max(1.0, count))

    return _by_channel(_dims(function), x, pool)


def _adaptive_maximum(
    function: Callable[..., Tensor], x: Moments, output_size: Any, return_indices: bool = False
) -> Moments:
    return _by_channel(_dims(function), x, lambda one: one.each(lambda field: function(field, output_size)))


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

    def pooled(field: Tensor) -> Tensor:
        return function(field, kernel_size, stride, padding, ceil_mode, count_include_pad=False)

    return _by_channel(_dims(function), x, lambda one: one.each(pooled))


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


for _count in (1, 2, 3):
    for _prefix, _pool in (("avg_pool", _windows), ("adaptive_avg_pool", _adaptive)):
        _name = f"{_prefix}{_count}d"
        rule(_name)(partial(_pool, getattr(functional, _name)))
    rule(f"adaptive_max_pool{_count}d")(partial(_adaptive_maximum, getattr(functional, f"adaptive_avg_pool{_count}d")))
rule("max_pool1d")(_maximum_1d)
rule("max_pool2d")(partial(_maximum, functional.avg_pool2d))
rule("max_pool3d")(partial(_maximum, functional.avg_pool3d))
