"""Sums and products: adding branches, and every function that is linear in each of two factors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntksap.methods.moments import uniform
from ntksap.methods.moments.table import moments_of, rule
from ntksap.methods.moments.uniform import Uniform
from ntksap.methods.moments.value import Known, Moments, Weight, unmasked
from ntksap.net.kernels import conv2d

Bilinear = Callable[[Tensor, Tensor], Tensor]


def product(function: Bilinear, a: Moments, b: Moments) -> Moments:
    """Return the moments of f(a, b) = Σ a·b, a sum of products of independent factors of which one has mean 0:

    E[f²] = f(E a², E b²), and since ḟ = f(ȧ, b) + f(a, ḃ), E[ḟ²] = f(E ȧ², E b²) + f(E a², E ḃ²).
    """
    return Moments(
        function(a.square, b.square),
        function(a.cross, b.cross),
        function(a.tangent, b.square) + function(a.square, b.tangent),
        function(a.tangent_cross, b.cross) + function(a.cross, b.tangent_cross),
        function(a.mean, b.mean),
    )


@rule("mul")
def mul(a: Any, other: Any) -> Moments:
    """Entry by entry. Exact for independent factors (a gate and what it gates, a branch and its scale)."""
    a, b = _placed(a, other)
    shape = a.shape if a.shape == b.shape else torch.broadcast_shapes(a.shape, b.shape)
    return uniform.widened(product(torch.mul, uniform.thinned(a), uniform.thinned(b)), shape)


@rule("add")
def add(a: Any, other: Any, *, alpha: float = 1) -> Moments:
    """E[(a+b)²] = E a² + E b² + 2 E a · E b: exact for branches that are independent given their means."""
    a, b = _placed(a, other if alpha == 1 else mul(other, alpha))
    shape = a.shape if a.shape == b.shape else torch.broadcast_shapes(a.shape, b.shape)
    a, b = uniform.thinned(a), uniform.thinned(b)
    both = 2 * unmasked(a.mean) * unmasked(b.mean)
    sums = Moments(
        a.square + b.square + both,
        a.cross + b.cross + both,
        a.tangent + b.tangent,
        a.tangent_cross + b.tangent_cross,
        a.mean + b.mean,
    )
    return uniform.widened(sums, shape)


@rule("sub")
def sub(a: Any, other: Any, *, alpha: float = 1) -> Moments:
    """a + (−b)."""
    return add(a, mul(other, -alpha))


@rule("rsub")
def rsub(a: Any, other: Any, *, alpha: float = 1) -> Moments:
    """b − a, for a number minus a tensor."""
    return sub(other, a, alpha=alpha)


@rule("neg")
def neg(a: Moments) -> Moments:
    """−a."""
    return mul(a, -1.0)


@rule("div")
def div(a: Any, other: Any, *, rounding_mode: str | None = None) -> Moments:
    """a / b with b held at its mean size (a number, or a statistic)."""
    if rounding_mode is not None:
        raise NotImplementedError("a rounded quotient has no moments")
    b = moments_of(other)
    if isinstance(b, Known):
        return mul(a, 1 / b.mean)
    return mul(a, 1 / b.square.detach().sqrt())


@rule("rdiv")
def rdiv(a: Moments, other: Any) -> Moments:
    """b / a, for a number over a tensor."""
    return div(other, a)


@rule("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Moments:
    """Exact: weights have mean 0 and are independent of the input."""
    return _layer(functional.linear, x, weight, bias, channel=-1, outputs=0)


@rule("addmm")
def addmm(bias: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Moments:
    """β·bias + α·x @ weight, a linear layer whose weight is transposed."""
    if alpha != 1:
        mat1 = mul(mat1, alpha)
    if bias is not None and beta != 1:
        bias = mul(bias, beta)
    return _layer(torch.matmul, mat1, mat2, bias, channel=-1, outputs=-1)


def _convolution(
    function: Callable[..., Tensor], x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any
) -> Moments:
    """Squares are exact with padding, stride and groups; tangents of far positions are related by `cross` alone."""

    if isinstance(weight, Uniform):
        y = uniform.convolution(function, moments_of(x), weight, args, kwargs)
        return _biased(y, bias, channel=-weight.mask.dim() + 1)

    def convolve(inputs: Tensor, kernel: Tensor) -> Tensor:
        if function is functional.conv2d and isinstance(weight, Weight):  # the kernel is a mask
            return conv2d(inputs, kernel, kernel.detach().bool(), *args, **kwargs)
        return function(inputs, kernel, None, *args, **kwargs)

    return _layer(convolve, x, weight, bias, channel=-moments_of(weight).like.dim() + 1)


def _layer(function: Bilinear, x: Any, weight: Any, bias: Any, *, channel: int, outputs: int = 0) -> Moments:
    """A layer's product and its bias, which is added along dimension ``channel`` (from the end)."""
    x, weight = moments_of(x), moments_of(weight)
    if isinstance(weight, Uniform):
        y = uniform.linear(x, weight, weight.mask.shape[outputs])
    elif isinstance(weight, Weight) and x.square.dim() > 1:
        y = _masked(function, x, weight.mask, weight.scale)
    else:
        y = product(function, x, weight)
    return _biased(y, bias, channel=channel)


def _biased(y: Moments, bias: Any, *, channel: int) -> Moments:
    if bias is None:
        return y
    shape = [-1] + [1] * (-channel - 1)
    return add(y, moments_of(bias).each(lambda field: field.view(shape) if field.dim() == 1 else field))


def _masked(function: Bilinear, x: Moments, mask: Tensor, scale: Tensor) -> Moments:
    """`product` with a weight m·θ: all fields in one call, since E w² = scale·m and E ẇ² = m."""
    parts = (x.square * scale, x.cross * scale, x.tangent * scale + x.square, x.tangent_cross * scale + x.cross)
    result: Tensor = SinglePrecision.apply(function, torch.cat(parts), mask)  # type: ignore[no-untyped-call]
    square, cross, tangent, tangent_cross = result.split(len(x.square))
    return Moments(square, cross, tangent, tangent_cross, torch.zeros_like(square))


class SinglePrecision(torch.autograd.Function):
    """A bilinear function of float64 tensors in float32, each scaled by its maximum.

    This makes convolutions several times faster. Moments are not negative, so nothing cancels and 24 bits remain;
    scaling saves numbers that float32 could not hold.
    """

    @staticmethod
    def forward(ctx: Any, function: Bilinear, x: Tensor, mask: Tensor) -> Tensor:
        """Return function(x, mask); the inner graph is kept for `backward`."""
        small, ctx.scale = _scaled(x)
        with torch.enable_grad():
            ctx.inside = (small.requires_grad_(ctx.needs_input_grad[1]), mask.detach().float().requires_grad_())
            ctx.outside = function(*ctx.inside)
        result: Tensor = ctx.outside.detach().to(x) * ctx.scale
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor]:
        """Return the two derivatives, scaled likewise."""
        small, scale = _scaled(gradient)
        wanted = [part for part in ctx.inside if part.requires_grad]
        *by_x, by_mask = torch.autograd.grad(ctx.outside, wanted, small)
        del ctx.inside, ctx.outside  # the outer graph would hold them until all layers are done
        return None, by_x[0].to(gradient) * scale if by_x else None, _times(by_mask, scale * ctx.scale)


def _times(small: Tensor, scale: Tensor) -> Tensor:
    """small · scale in float32, multiplied by √scale twice, so that the scale itself need not fit."""
    root = scale.sqrt().float()
    return small.mul_(root).mul_(root)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """x divided by its largest absolute value, in float32, and that value."""
    size = x.detach().abs().amax()
    size = torch.where(size > 0, size, 1)
    return (x.detach() / size).float(), size


for _function in (
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
):
    rule(_function.__name__)(partial(_convolution, _function))


def _placed(a: Any, b: Any) -> tuple[Moments, Moments]:
    """Both as moments, in the dtype and on the device of the one that is."""
    like = (a if isinstance(a, Moments) else b).like
    return tuple(  # type: ignore[return-value]
        part
        if isinstance(part, Moments) and part.like.dtype == like.dtype
        else moments_of(part).each(lambda f: f.to(like))
        for part in (a, b)
    )
