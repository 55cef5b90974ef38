"""How a convolution moves over its images, and the one way of moving that torch must not be given."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

THIN = 8
"""Input channels below which torch's 1×1 convolution with a stride is not safe with channels last."""


class Geometry(NamedTuple):
    """How a convolution moves over its images, as torch's own operator is given it; sizes are (y, x)."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Stride, padding, dilation, transposed, output padding, groups."""
        return self.stride, self.padding, self.dilation, False, (0, 0), self.groups


def geometry(layer: nn.Conv2d) -> Geometry:
    """Return how this layer moves."""
    padding = (0, 0) if layer.padding == "valid" else layer.padding
    return Geometry(layer.stride, padding, layer.dilation, layer.groups)


def thin(shape: Sequence[int]) -> bool:
    """Whether these are weights (C', C, 1, 1) of few channels C, which `without_skips` may have to handle."""
    return len(shape) == 4 and shape[1] < THIN and tuple(shape[2:]) == (1, 1)


def without_skips(x: Tensor, shape: Sequence[int], how: Geometry) -> tuple[Tensor, Geometry]:
    """Return images and a way to move over them that give the same result, and that torch can be trusted with.

    ``shape`` is that of the weights. A thin 1×1 convolution with a stride only looks at every s-th pixel of
    x (…, C, H, W): it equals one without a stride on those pixels. On processors with AVX2, and with channels last,
    oneDNN's derivative of the former with respect to the weights writes past its buffer: the process dies, hangs, or
    returns wrong numbers. Everything else is returned as it is.
    """
    if not thin(shape) or how.stride == (1, 1) or how.padding != (0, 0):
        return x, how
    down, across = how.stride
    return x[..., ::down, ::across], how._replace(stride=(1, 1))


def laid_out_like(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weight with its channels where those of images x are, if x has them first.

    Torch's convolution has its result's channels last if those of its images *or* of its weight are, and so would all
    layers after it, at the price of a copy before each that wants its channels first.
    """
    first = x.dim() == 4 and x.shape[1] > 1 and x.stride(1) > 1
    return weight.contiguous() if first else weight
