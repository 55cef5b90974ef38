"""Activations: functions that act on each entry alone."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ntksap.methods.moments.linear import add, product
from ntksap.methods.moments.table import moments_of, rule
from ntksap.methods.moments.uniform import thinned, widened
from ntksap.methods.moments.value import Moments


class Effect(NamedTuple):
    """What an activation φ does to z ~ N(μ, V) and to a second such z' correlated with it; numbers without gradient.

    Args:
        mean: E φ(z).
        square: E φ(z)² / E z².
        gain: E φ'(z)².
        cross_gain: E φ'(z)φ'(z'), by which E φ(z)φ(z') grows with the covariance of z and z' (Price's theorem).
        cross: (E φ(z)φ(z') − cross_gain · E z z') / E z², what is left of it, which grows with the square.
    """

    mean: Tensor
    square: Tensor
    gain: Tensor
    cross_gain: Tensor
    cross: Tensor


def apply(x: Moments, effect: Callable[[Tensor, Tensor, Tensor], Effect]) -> Moments:
    """Return the moments of φ(x), given ``effect(mean, variance, correlation)`` of φ on Gaussians.

    A change of the masks moves squares in proportion and leaves the gains alone, as the paper's derivative leaves open
    gates open.
    """
    shape, x = x.shape, thinned(x)
    with torch.no_grad():
        known = x.mean.square()
        total = (x.square - known).clamp_min(0)
        shared = (x.cross - known).clamp_min(0)
        # after a normalisation or a layer these are zero everywhere; numbers instead of tensors then save most work
        mean = x.mean if x.mean.any() else x.mean.new_zeros(())
        correlation = (shared / total).nan_to_num(nan=0.0).clamp(0, 1) if shared.any() else shared.new_zeros(())
        z = effect(mean, total, correlation)
    return widened(
        Moments(
            x.square * z.square,
            x.square * z.cross + x.cross * z.cross_gain,
            x.tangent * z.gain,
            x.tangent_cross * z.cross_gain,
            z.mean,
        ),
        shape,
    )


def leaky(slope: float, mean: Tensor, variance: Tensor, correlation: Tensor) -> Effect:
    """φ(z) = max(z, 0) + slope · min(z, 0), in closed form; ReLU is slope 0.

    Products are the Hermite series of φ cut after its third term, with the rest at ρ⁴ (0.1 % off for mean 0). Those of
    φ' follow the arcsine law, exact for mean 0 and at ρ = 0 and 1.
    """
    if variance.dim() and not mean.dim() and not correlation.dim():  # both 0, see `apply`: the same for all variances
        unit = _standard(slope, variance.dtype, variance.device)
        return unit._replace(mean=unit.mean * variance.sqrt())
    deviation, rest = variance.sqrt(), 1 - slope
    ratio = (mean / deviation).nan_to_num(nan=0.0, posinf=40.0, neginf=-40.0) if mean.dim() else mean
    opened = torch.special.ndtr(ratio)
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    size = 1 + ratio.square()  # E z² / V; what follows is in units of V
    rectified = ratio * opened + density
    first = slope * ratio + rest * rectified
    square = slope**2 * size + (1 - slope**2) * (size * opened + ratio * density)
    gate = slope + rest * opened
    linear, bent = gate.square(), rest**2 * density.square() / 2
    beyond = (square - first.square() - linear - bent).clamp_min(0)
    twice = correlation.square()
    product = first.square() + linear * correlation + bent * twice + beyond * twice.square()
    gain = slope**2 + (1 - slope**2) * opened
    cross_gain = gate.square() + (gain - gate.square()).clamp_min(0) * (2 / math.pi) * torch.asin(correlation)
    cross = (product - cross_gain * (correlation + ratio.square())) / size
    return Effect(first * deviation, square / size, gain, cross_gain, cross)


@lru_cache
def _standard(slope: float, dtype: torch.dtype, device: torch.device) -> Effect:
    zero = torch.zeros((), dtype=dtype, device=device)
    return leaky(slope, zero, zero + 1, zero)


def quadrature(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, correlation: Tensor) -> Effect:
    """Any φ, by quadrature of its values and slopes; products by the first three Hermite terms.

    Where E z² = 0 but φ(0) ≠ 0 there is nothing to be in proportion to, and that constant is left out.
    """
    centre, deviation = mean.float(), variance.sqrt().float()  # φ itself takes the time, and single precision suffices
    shape = torch.broadcast_shapes(centre.shape, deviation.shape)
    sums = torch.zeros(8, *shape, dtype=centre.dtype, device=centre.device)
    nodes, weights = _nodes()
    step = len(nodes) if sums.numel() <= _SMALL else 1  # all nodes at once, where that does not take much memory
    for start in range(0, len(nodes), step):
        node, weight = (torch.tensor(part[start : start + step], device="cpu").to(centre) for part in (nodes, weights))
        with torch.enable_grad():
            at = (
                (centre + deviation * node.view(-1, *[1] * len(shape)))
                .expand(len(node), *shape)
                .clone()
                .requires_grad_()
            )
            value = function(at)
            (slope,) = torch.autograd.grad(value, at, torch.ones_like(value))
        for half, here in enumerate((value.detach(), slope)):
            terms = torch.stack([weight, weight * node, weight * (node * node - 1) / math.sqrt(2)]) @ here.flatten(1)
            sums[4 * half : 4 * half + 3] += terms.view(3, *shape)
            sums[4 * half + 3] += (weight @ here.square().flatten(1)).view(shape)
    values, slopes = list(sums[:4].to(variance)), list(sums[4:].to(variance))
    product, cross_gain = (_series(sums, correlation) for sums in (values, slopes))
    size = variance + mean.square()
    square, cross = (
        torch.where(size > 0, part / size, 0)
        for part in (values[3], product - cross_gain * (correlation * variance + mean.square()))
    )
    return Effect(values[0], square, slopes[3], cross_gain, cross)


_SMALL = 2**17
"""Up to this many numbers, all nodes are evaluated at once."""


def _series(sums: list[Tensor], correlation: Tensor) -> Tensor:
    first, linear, bent = (part.square() for part in sums[:3])
    beyond = (sums[3] - first - linear - bent).clamp_min(0)
    return first + correlation * (linear + correlation * (bent + correlation * beyond))


@lru_cache
def _nodes() -> tuple[list[float], list[float]]:
    """Points and weights of the mean over N(0, 1): the trapezoidal rule, which for smooth φ is exact to about 10⁻⁵."""
    at = torch.arange(-7, 8, dtype=torch.float64, device="cpu") * 0.6
    weights = torch.exp(-at.square() / 2)
    return at.tolist(), (weights / weights.sum()).tolist()


def elementwise(function: Callable[[Tensor], Tensor], x: Moments) -> Moments:
    """Return the moments of ``function`` of x, entry by entry; approximate, see `quadrature`."""
    return apply(x, partial(quadrature, function))


@rule("relu")
def relu(x: Moments, inplace: bool = False) -> Moments:
    """Exact where x is symmetric, that is, after any layer; Gaussian where a residual stream has a mean."""
    return apply(x, partial(leaky, 0.0))


@rule("leaky_relu")
def leaky_relu(x: Moments, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """Like ReLU."""
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
    torch.clamp, torch.log1p, torch.reciprocal, torch.atan, torch.expm1, torch.clamp_min, torch.clamp_max,
    functional.threshold, torch.sinc, torch.erfc,
)  # fmt: skip


def _register(function: Callable[..., Tensor]) -> None:
    @rule(function.__name__)
    def ruled(x: Moments, *args: Any, inplace: bool = False, **kwargs: Any) -> Moments:
        return elementwise(lambda z: function(z, *args, **kwargs), x)


for _function in _SMOOTH:
    _register(_function)


@rule("pow")
def power(x: Moments, exponent: Any) -> Moments:
    """x² is a statistic held at its mean (as in an RMSNorm written by hand); other powers are like any function."""
    if exponent == 2:
        return square(x)
    return elementwise(lambda z: z**exponent, x)


@rule("rpow")
def to_the_power(x: Moments, other: Any) -> Moments:
    """other^x."""
    return elementwise(lambda z: other**z, x)


@rule("glu")
def glu(x: Moments, dim: int = -1) -> Moments:
    """a·σ(b) of the halves a and b."""
    a, b = (x.each(lambda field, i=i: field.chunk(2, dim)[i]) for i in range(2))  # type: ignore[misc]
    return product(torch.mul, a, elementwise(torch.sigmoid, b))


@rule("rrelu")
def rrelu(x: Moments, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, **kwargs: Any) -> Moments:
    """A leaky ReLU of the mean slope."""
    return apply(x, partial(leaky, (lower + upper) / 2))


@rule("log_softmax")
def log_softmax(x: Moments, dim: int = -1, *args: Any, **kwargs: Any) -> Moments:
    """x − log Σ exp x, the latter held at log n."""
    return add(x, -math.log(x.like.shape[dim]))


@rule("square")
def square(x: Moments) -> Moments:
    """Held at its mean."""
    return moments_of(x.square.detach())
