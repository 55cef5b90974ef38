"""`Moments`: what is known about a tensor before its weights and inputs are drawn."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MASKED = -1e4
"""A value below this is not a number but marks a mask."""

FIELDS = ("square", "cross", "tangent", "tangent_cross", "mean")


@dataclass(frozen=True)
class Moments:
    """Moments of a random tensor x(w, z) over weights w and inputs z; every field has the shape of x.

    z and z' are two independent inputs that meet the same w (far positions of one noise image are such a pair too), and
    ẋ is the change of x when every kept prunable weight moves by independent noise of variance 1.

    Args:
        square: E[x²].
        cross: E[x(z)·x(z')], the part of it that is the same for all inputs.
        tangent: E[ẋ²], the diagonal of the expected neural tangent kernel.
        tangent_cross: E[ẋ(z)·ẋ(z')], its entries off the diagonal.
        mean: E[x]; it carries no gradient.
    """

    square: Tensor
    cross: Tensor
    tangent: Tensor
    tangent_cross: Tensor
    mean: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> "Moments":
        """Return the moments with a function that only moves entries (reshape, index, concatenate) on each field."""
        return Moments(*(function(getattr(self, name)) for name in FIELDS))

    @property
    def like(self) -> Tensor:
        """A tensor of the shape, dtype and device of x."""
        return self.square

    @property
    def shape(self) -> torch.Size:
        """The shape of x."""
        return self.like.shape

    @property
    def variance(self) -> Tensor:
        """E over weights of the variance over inputs."""
        return self.square - self.cross


def noise(like: Tensor) -> Moments:
    """Return the moments of standard normal inputs, independent from entry to entry."""
    zero, one = (torch.tensor(n, dtype=like.dtype, device=like.device).expand(like.shape) for n in (0.0, 1.0))
    return Moments(one, zero, zero, zero, zero)


class Known(Moments):
    """A tensor whose values are known, whatever is drawn: E[x²] = x². The fields are made when something asks for them.

    A mask adds −∞, or something like it, to logits: see `unmasked`.
    """

    def __init__(self, value: Tensor) -> None:
        object.__setattr__(self, "mean", value.detach())

    mean: Tensor
    square = property(lambda self: unmasked(self.mean).square())
    cross = square
    tangent = property(lambda self: torch.zeros_like(self.mean))
    tangent_cross = tangent

    @property
    def like(self) -> Tensor:
        """As `Moments.like`."""
        return self.mean

    def each(self, function: Callable[[Tensor], Tensor]) -> "Known":
        """As `Moments.each`."""
        return Known(function(self.mean))


def unmasked(mean: Tensor) -> Tensor:
    """Return ``mean`` without the marks of masks, which softmax reads from it and which matter nowhere else."""
    return mean.where(mean > MASKED, 0)


def certain(value: Tensor) -> Known:
    """Return the moments of a tensor whose values are known: E[x²] = x²."""
    return Known(value)


class Weight(Moments):
    """A prunable parameter m·θ, E θ = 0 and E θ² = ``scale``: square = scale·m, tangent = m, the same for all inputs.

    Layers read ``mask`` and ``scale``; the fields are made when something else asks for them. The mask may have another
    dtype than the scale, whose dtype is used for all computation.
    """

    def __init__(self, mask: Tensor, scale: Tensor) -> None:
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "scale", scale)

    mask: Tensor
    scale: Tensor
    square = property(lambda self: self.tangent * self.scale)
    cross = square
    tangent = property(lambda self: self.mask.to(self.scale.dtype))
    tangent_cross = tangent
    mean = property(lambda self: torch.zeros_like(self.like))

    @property
    def like(self) -> Tensor:
        """As `Moments.like`; it takes no memory."""
        return self.scale.expand(self.mask.shape)

    def each(self, function: Callable[[Tensor], Tensor]) -> "Weight":
        """As `Moments.each`; the scale stays."""
        return self.moved(function(self.mask))

    def moved(self, mask: Tensor) -> "Weight":
        """Return the weight with its entries elsewhere."""
        return Weight(mask, self.scale)


def _distinct(x: Tensor) -> Tensor:
    """Return x with size 1 where it repeats itself, so that one number that stands for a large embedding stays one."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        x = x.narrow(dim, 0, 1) if stride == 0 and size > 1 else x
    return x


def fixed(square: Tensor, mean: Tensor) -> Moments:
    """Return the moments of a parameter that is not perturbed; all inputs share it."""
    one, other = torch.broadcast_tensors(_distinct(square), _distinct(mean))
    if square.device.type != "meta" and torch.equal(one, other.square()):
        return Known(mean)
    zero = torch.zeros((), dtype=square.dtype, device=square.device).expand(square.shape)
    return Moments(square, square, zero, zero, mean)
