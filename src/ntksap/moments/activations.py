"""Activations: functions that act on each entry alone."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ntksap.moments.table import moments_of, rule
from ntksap.moments.value import Moments


class Gaussian(NamedTuple):
    """What an activation φ makes of z ~ N(μ, V) and of a second such z' that is correlated by ρ; all without gradient.

    Args:
        mean: E φ(z).
        square: E φ(z)².
        cross: E φ(z)φ(z').
        gain: E φ'(z)².
        cross_gain: E φ'(z)φ'(z').
    """

    mean: Tensor
    square: Tensor
    cross: Tensor
    gain: Tensor
    cross_gain: Tensor


def apply(x: Moments, moments: Callable[[Tensor, Tensor, Tensor], Gaussian]) -> Moments:
    """Return the moments of φ(x), given ``moments(mean, variance, correlation)`` of φ.

    Entries are taken as Gaussian. Where their mean is 0 only ReLU's symmetry is used, which is exact. Changes of a mask
    move squares in proportion and leave the gains alone, as the paper's derivative leaves open gates open.
    """
    with torch.no_grad():
        total = (x.square - x.mean.square()).clamp_min(0)
        shared = (x.cross - x.mean.square()).clamp_min(0)
        correlation = torch.where(total > 0, shared / total, 0).clamp(0, 1)
        z = moments(x.mean, total, correlation)
        alive = x.square > 0
        square = torch.where(alive, z.square / x.square, z.gain)
        # E φφ' grows with the covariance by E φ'φ' (Price's theorem), and with the square by what is left
        cross = torch.where(alive, (z.cross - z.cross_gain * x.cross) / x.square, 0)
        # what a dead entry becomes (φ(0) ≠ 0) is a number
        offset = torch.where(alive, 0, z.square)
    return Moments(
        x.square * square + offset,
        x.square * cross + x.cross * z.cross_gain + offset,
        x.tangent * z.gain,
        x.tangent_cross * z.cross_gain,
        z.mean,
    )


def leaky(slope: float, mean: Tensor, variance: Tensor, correlation: Tensor) -> Gaussian:
    """φ(z) = max(z, 0) + slope · min(z, 0), in closed form; ReLU is slope 0.

    Cross terms are the Hermite series of φ, cut after the third term with the rest at ρ⁴ (0.1 % for mean 0), and for
    φ' the arcsine law, exact for mean 0 and at ρ = 0 and 1.
    """
    deviation = variance.sqrt()
    ratio = torch.where(variance > 0, mean / deviation, mean.sign() * math.inf).nan_to_num(nan=0.0)
    open_ = torch.special.ndtr(ratio)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    rest = 1 - slope
    rectified = mean * open_ + deviation * density
    rectified_square = (mean.square() + variance) * open_ + mean * deviation * density
    first = slope * mean + rest * rectified
    square = slope**2 * (mean.square() + variance) + (1 - slope**2) * rectified_square
    linear = (slope + rest * open_).square() * variance
    bent = rest**2 * density.square() * variance / 2
    beyond = (square - first.square() - linear - bent).clamp_min(0)
    cross = first.square() + linear * correlation + bent * correlation.square() + beyond * correlation.square().square()
    gate = slope + rest * open_
    gain = slope**2 + (1 - slope**2) * open_
    cross_gain = gate.square() + (gain - gate.square()).clamp_min(0) * (2 / math.pi) * torch.asin(correlation)
    return Gaussian(first, square, cross, gain, cross_gain)


_NODES = 9


def quadrature(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, correlation: Tensor) -> Gaussian:
    """Any φ, by Gauss–Hermite quadrature of its values and slopes; cross terms by its first three Hermite terms."""
    nodes, weights = _gauss_hermite()
    deviation = variance.sqrt()
    values, slopes = [torch.zeros_like(mean) for _ in range(4)], [torch.zeros_like(mean) for _ in range(4)]
    for node, weight in zip(nodes, weights, strict=True):
        with torch.enable_grad():
            at = (mean + deviation * node).requires_grad_()
            value = function(at)
            (slope,) = torch.autograd.grad(value.sum(), at)
        hermite = (1.0, node, (node * node - 1) / math.sqrt(2))
        for sums, here in ((values, value.detach()), (slopes, slope)):
            for order, polynomial in enumerate(hermite):
                sums[order] += weight * polynomial * here
            sums[3] += weight * here.square()
    cross, cross_gain = (_series(*sums, correlation) for sums in (values, slopes))
    return Gaussian(values[0], values[3], cross, slopes[3], cross_gain)


def _series(first: Tensor, linear: Tensor, bent: Tensor, square: Tensor, correlation: Tensor) -> Tensor:
    beyond = (square - first.square() - linear.square() - bent.square()).clamp_min(0)
    powers = (linear.square(), bent.square(), beyond)
    return first.square() + sum((p * correlation**n for n, p in enumerate(powers, 1)), torch.zeros_like(first))


def _gauss_hermite() -> tuple[list[float], list[float]]:
    """Nodes and weights of the mean over N(0, 1), from the eigenvalues of the Jacobi matrix (Golub and Welsch)."""
    off = torch.arange(1, _NODES, dtype=torch.float64).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values.tolist(), vectors[0].square().tolist()


def elementwise(function: Callable[[Tensor], Tensor], x: Moments) -> Moments:
    """Return the moments of ``function`` of x, entry by entry; approximate, see `quadrature`."""
    return apply(x, partial(quadrature, function))


@rule("relu")
def relu(x: Moments, inplace: bool = False) -> Moments:
    """Exact where x is symmetric, that is behind any layer; Gaussian where a residual stream has a mean."""
    return apply(x, partial(leaky, 0.0))


@rule("leaky_relu")
def leaky_relu(x: Moments, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """As ReLU."""
    return apply(x, partial(leaky, negative_slope))


@rule("abs")
def absolute(x: Moments) -> Moments:
    """A leaky ReLU of slope −1."""
    return apply(x, partial(leaky, -1.0))


@rule("prelu")
def prelu(x: Moments, weight: Any) -> Moments:
    """A leaky ReLU with the mean of its learnt slopes."""
    return apply(x, partial(leaky, float(moments_of(weight).mean.mean())))


_SMOOTH: tuple[Callable[..., Tensor], ...] = (
    functional.gelu, functional.silu, functional.elu, functional.selu, functional.celu, functional.softplus,
    functional.mish, functional.hardswish, functional.hardsigmoid, functional.hardtanh, functional.relu6,
    functional.logsigmoid, functional.softsign, functional.tanhshrink, functional.hardshrink, functional.softshrink,
    torch.tanh, torch.sigmoid, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.erf, torch.sin, torch.cos,
    torch.clamp, torch.log1p, torch.reciprocal,
)  # fmt: skip


def _register(function: Callable[..., Tensor]) -> None:
    @rule(function.__name__)
    def ruled(x: Moments, *args: Any, inplace: bool = False, **kwargs: Any) -> Moments:
        return elementwise(lambda z: function(z, *args, **kwargs), x)


for _function in _SMOOTH:
    _register(_function)


@rule("pow")
def power(x: Moments, exponent: Any) -> Moments:
    """x² is taken as a statistic, held at its mean E x² (as in a hand-written RMSNorm); other powers as any function."""
    if exponent == 2:
        return square(x)
    return elementwise(lambda z: z**exponent, x)


@rule("square")
def square(x: Moments) -> Moments:
    """Held at its mean."""
    return moments_of(x.square.detach())
