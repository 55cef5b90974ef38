"""Layers whose mask is one number for all weights: nothing of the size of a weight is ever made.

By symmetry all outputs of such a layer have the same moments. They are computed once and expanded, a view that takes no
memory, and functions of single entries (`thin`) work on the one entry behind such a view.
"""

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from ntksap.methods.moments.value import Known, Moments, Weight


class Uniform(Weight):
    """A prunable parameter of which every entry is kept with weight ``density``, one number: m = density everywhere.

    ``mask`` is on the meta device: it has a shape, which functions that move entries change, and no values.
    """

    def __init__(self, density: Tensor, mask: Tensor, scale: Tensor) -> None:
        super().__init__(mask, scale)
        object.__setattr__(self, "density", density)

    density: Tensor
    tangent = property(lambda self: self.density.expand(self.mask.shape))
    tangent_cross = tangent
    square = property(lambda self: (self.density * self.scale).expand(self.mask.shape))
    cross = square

    def moved(self, mask: Tensor) -> "Uniform":
        """See `Weight.moved`."""
        return Uniform(self.density, mask, self.scale)


class Repeated(Moments):
    """Moments that are the same along some dimensions: fields of size 1 there, in ``one``, broadcast to a shape.

    The fields are expanded when something asks for them, which takes no memory.
    """

    def __init__(self, one: Moments, shape: torch.Size) -> None:
        object.__setattr__(self, "one", one)
        object.__setattr__(self, "size", shape)

    one: Moments
    size: torch.Size
    square = property(lambda self: self.one.square.expand(self.size))
    cross = property(lambda self: self.one.cross.expand(self.size))
    tangent = property(lambda self: self.one.tangent.expand(self.size))
    tangent_cross = property(lambda self: self.one.tangent_cross.expand(self.size))
    mean = property(lambda self: self.one.mean.expand(self.size))

    @property
    def like(self) -> Tensor:
        """See `Moments.like`."""
        return self.one.square.detach().expand(self.size)

    @property
    def shape(self) -> torch.Size:
        """See `Moments.shape`."""
        return self.size


def thinned(x: Moments) -> Moments:
    """Return moments whose fields have size 1 where they repeat themselves: for functions of single entries."""
    if isinstance(x, Repeated):
        return x.one
    if isinstance(x, Known):
        return Known(thin(x.mean))
    return Moments(thin(x.square), thin(x.cross), thin(x.tangent), thin(x.tangent_cross), thin(x.mean))


def widened(x: Moments, shape: torch.Size) -> Moments:
    """Return moments of a shape to which the fields of x can be broadcast."""
    return Repeated(x, shape)


def linear(x: Moments, weight: Uniform, outputs: int) -> Moments:
    """Return the moments of a linear layer: each output sums over the last dimension."""
    inputs = x.shape[-1]
    _check_size(inputs, math.prod(weight.mask.shape) // outputs)
    fields = _mixed(x, weight)
    sums = fields.sum(-1, keepdim=True) if fields.shape[-1] > 1 else fields * inputs
    return _repeated(sums, (*x.shape[:-1], outputs))


def convolution(
    function: Callable[..., Tensor], x: Moments, weight: Uniform, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Moments:
    """Return the moments of a convolution, transposed or not: channels are summed, then kernels of ones slide.

    There is one kernel for all groups where they see the same input, else one for each.
    """
    groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)  # in all six functions, after bias and three more
    size = weight.mask.shape[2:]
    channel = -len(size) - 1
    sizes = weight.mask.shape[0], weight.mask.shape[1] * groups
    outputs, wanted = reversed(sizes) if "transpose" in function.__name__ else sizes
    _check_size(x.shape[channel], wanted)
    inputs = wanted // groups
    fields = _mixed(x, weight)
    if groups == 1 or fields.shape[channel] == 1:
        sums = fields.sum(channel, keepdim=True) if fields.shape[channel] > 1 else fields * inputs
    else:
        sums = fields.unflatten(channel, (groups, inputs)).sum(channel)
    sums = sums.expand(*sums.shape[: channel + 1], *x.shape[channel + 1 :])  # positions differ at the edges
    kernel = torch.ones(sums.shape[channel], 1, *size, dtype=sums.dtype, device=sums.device)
    args, kwargs = (
        ((*args[:3], len(kernel), *args[4:]), kwargs) if len(args) > 3 else (args, {**kwargs, "groups": len(kernel)})
    )
    batch = sums.flatten(0, channel - 1) if sums.dim() > len(size) + 1 else sums
    slid = function(batch, kernel, None, *args, **kwargs)
    slid = slid.view(*sums.shape[:channel], *slid.shape[channel:])
    if len(kernel) > 1:
        slid = slid.repeat_interleave(outputs // groups, channel)
    return _repeated(slid, (*x.shape[:channel], outputs, *slid.shape[channel + 1 :]))


def _check_size(given: int, wanted: int) -> None:
    if given != wanted:  # torch would notice, but no product of this size is ever computed
        raise ValueError(f"it was given {given} inputs and has weights for {wanted}")


def _mixed(x: Moments, weight: Uniform) -> Tensor:
    """Return what the four fields of a layer's output are sums of, stacked: (4, …), of size 1 where x repeats itself.

    Like `ntksap.methods.moments.linear.product` with E w² = scale·d and E ẇ² = d: the squares are scaled, and so are
    the tangents, to which the squares are added.
    """
    x = thinned(x)
    fields = torch.stack(torch.broadcast_tensors(x.square, x.cross, x.tangent, x.tangent_cross))
    mix = _EYE.to(fields) * weight.scale + _SQUARES.to(fields)
    return (mix * weight.density @ fields.flatten(1)).view(fields.shape)


def _repeated(fields: Tensor, shape: tuple[int, ...]) -> Moments:
    zero = torch.zeros([1] * len(shape), dtype=fields.dtype, device=fields.device)
    square, cross, tangent, tangent_cross = fields.unbind()
    return Repeated(Moments(square, cross, tangent, tangent_cross, zero), torch.Size(shape))


_EYE = torch.eye(4, dtype=torch.float64, device="cpu")
_SQUARES = torch.tensor(
    [[0.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64, device="cpu"
)


def thin(x: Tensor, dims: Collection[int] | None = None) -> Tensor:
    """Return x with size 1 in those of its dimensions (of ``dims``, by default all) along which it repeats itself."""
    found = [dim for dim in repeats(x) if dims is None or dim in dims]
    if not found:
        return x
    if x.requires_grad:
        return _Thin.apply(x, found)  # type: ignore[no-untyped-call, no-any-return]
    for dim in found:
        x = x.narrow(dim, 0, 1)
    return x


def repeats(x: Tensor) -> list[int]:
    """Return the dimensions along which x repeats itself."""
    return [dim for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)) if stride == 0 and size > 1]


def thin_batch(x: Moments) -> Moments:
    """Return moments with size 1 in those dimensions before the last two in which they repeat: heads that are alike."""
    return x.each(lambda field: thin(field, range(field.dim() - 2)))


class _Thin(torch.autograd.Function):
    """One of several equal entries. Its derivative is shared among them in equal parts, with the same sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: list[int]) -> Tensor:
        """Narrow to size 1."""
        ctx.shape = x.shape
        ctx.times = 1
        for dim in dims:
            ctx.times *= x.shape[dim]
            x = x.narrow(dim, 0, 1)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Expand: a view again."""
        return (gradient / ctx.times).expand(ctx.shape), None
