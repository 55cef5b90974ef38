"""The kept weights of a convolution, in the order in which the kernels walk through them."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ntksap.net.kernels.compiler import call
from ntksap.net.kernels.geometry import Geometry

LINE = 128
"""Images whose width is not a multiple of a vector are stacked until a line has about this many numbers."""

_FIELDS = (
    "channels height width outputs out_height out_width stride_y stride_x pad_y pad_x rows pitch stack slack plane grad"
)


class Shape(ctypes.Structure):
    """The structure of the same name in ``sparse_conv.h``."""

    _fields_ = tuple((name, ctypes.c_int64) for name in _FIELDS.split())


@dataclass(frozen=True)
class Traversal:
    """The kept weights of one convolution for one size of images, in the order in which the kernels walk through them.

    ``kept`` (K,) holds their flat indices among all weights (``weights`` is the shape of those), sorted by output;
    ``order`` (K,) sorts them by the plane of the input that they look at. See ``sparse_conv.h`` for the rest.
    """

    shape: Shape
    weights: torch.Size
    kept: Tensor
    order: Tensor
    first: Tensor
    where: Tensor
    back_first: Tensor
    back_where: Tensor
    _places: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def places_in(self, weight: Tensor) -> Tensor:
        """Return where the kept weights lie in memory (K,), counted from the first of all, whatever their layout is."""
        strides = weight.stride()
        if strides not in self._places:
            along = torch.unravel_index(self.kept, self.weights)
            self._places[strides] = sum(index * stride for index, stride in zip(along, strides, strict=True))  # type: ignore[assignment]
        return self._places[strides]


def traversal_of(x: Tensor, kept: Tensor, how: Geometry) -> Traversal:
    """Return the traversal for a mask (C', C ÷ groups, h, w), from memory if this very tensor was asked for before."""
    traversals, size = _traversals.setdefault(kept, {}), tuple(x.shape[1:])
    key = (how, size, kept._version)
    if key not in traversals:
        traversals[key] = _make(size, kept.bool().contiguous(), how)
    made: Traversal = traversals[key]
    return made


_traversals: Any = WeakIdKeyDictionary()


def fits(x: Tensor, kept: Tensor, how: Geometry) -> bool:
    """Whether places in these images can be listed, in 32 bits."""
    shape = shape_of(tuple(x.shape[1:]), tuple(kept.shape), how)
    planes = shape.channels * shape.stride_y * shape.stride_x * shape.plane
    return bool(max(planes, shape.outputs * shape.grad) < 2**31)


def shape_of(size: tuple[int, ...], weight: tuple[int, ...], how: Geometry) -> Shape:
    """Return how images (C, H, W) are packed for weights (C', C ÷ groups, h, w) that move over them in this way."""
    (stride_y, stride_x), (pad_y, pad_x), (apart_y, apart_x), groups = how
    (channels, height, width), (outputs, per_group, high, wide) = size, weight
    reach_y, reach_x = (high - 1) * apart_y, (wide - 1) * apart_x
    out_height = (height + 2 * pad_y - reach_y - 1) // stride_y + 1
    out_width = (width + 2 * pad_x - reach_x - 1) // stride_x + 1
    if channels != groups * per_group or min(out_height, out_width) < 1:
        raise RuntimeError(f"weights of shape {weight} do not fit images of {channels}×{height}×{width}")
    rows, pitch = -(-(height + 2 * pad_y) // stride_y), -(-(width + 2 * pad_x) // stride_x)
    stack = 1 if out_width % 8 == 0 else max(1, LINE // (rows * pitch))
    slack = reach_y // stride_y * pitch + reach_x // stride_x
    size = stack * rows * pitch + 16  # vectors extend beyond the end
    return Shape(
        channels, height, width, outputs, out_height, out_width, stride_y, stride_x, pad_y, pad_x,
        rows, pitch, stack, slack, size, slack + size,
    )  # fmt: skip


def _make(size: tuple[int, ...], kept: Tensor, how: Geometry) -> Traversal:
    shape, count = shape_of(size, tuple(kept.shape), how), int(kept.count_nonzero())
    planes = shape.channels * shape.stride_y * shape.stride_x
    index, order = torch.empty(2, count, dtype=torch.long, device="cpu")
    where, back_where = torch.empty(2, count, dtype=torch.int32, device="cpu")
    first, back_first = (
        torch.empty(shape.outputs + 1, dtype=torch.long, device="cpu"),
        torch.zeros(planes + 1, dtype=torch.long, device="cpu"),
    )
    numbers = (how.groups, *kept.shape[2:], *how.dilation)
    call("sparse_plan", None, shape, kept, *numbers, index, first, where, back_first, order, back_where)
    return Traversal(shape, kept.shape, index, order, first, where, back_first, back_where)
