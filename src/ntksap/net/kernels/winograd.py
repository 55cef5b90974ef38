"""Dense 3×3 convolutions with a quarter of the multiplications, see ``winograd.h``."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from ntksap.net.kernels.compiler import NOTHING, After, available, call, threads

ROWS = 6
"""Tiles whose sums are held in registers at a time, as in ``winograd.h``."""

BLOCK = 24
"""Tiles processed together, a multiple of ROWS; fewer if there are few, so that each thread has some."""

FEW = 16
"""With fewer tiles than this in all images, transforming the weights takes longer than it saves."""

FEWEST = 9
"""With fewer channels than this before or after, vectors are mostly empty, and torch is faster; measured."""

_FIELDS = "images height width channels outputs pad_y pad_x out_height out_width down across block threads"


class Tiles(ctypes.Structure):
    """The structure of the same name in ``winograd.h``."""

    _fields_ = tuple((name, ctypes.c_int64) for name in _FIELDS.split())


def fits(weight: Tensor, how: Any) -> bool:
    """Whether these kernels can convolve with such weights."""
    return _fits(weight.shape, how) and available(weight)


def pays_off(x: Tensor, weight: Tensor, how: Any, *, back: bool = False) -> bool:
    """Whether these kernels can do it with images x, and are faster if channels come last: many tiles, mostly full.

    ``back``: x is a derivative with respect to the result, to be carried back to the images.
    """
    return _pays_off(x.shape, weight.shape, how, back) and available(x, weight) and x.dtype == weight.dtype


@functools.lru_cache(maxsize=4096)
def _fits(weight: torch.Size, how: Any) -> bool:
    moves: bool = weight[2:] == (3, 3) and how.stride == how.dilation == (1, 1) and how.groups == 1
    return moves and min(weight[:2]) >= FEWEST and max(how.padding) <= 2


@functools.lru_cache(maxsize=4096)
def _pays_off(size: torch.Size, weight: torch.Size, how: Any, back: bool) -> bool:
    if not _fits(weight, how) or size[1] != weight[0 if back else 1]:  # the latter is an error that torch reports
        return False
    pad_y, pad_x = how.padding
    height, width = size[2] + 2 * pad_y - 2, size[3] + 2 * pad_x - 2
    if back:
        height, width = size[2] + 2 - 2 * pad_y, size[3] + 2 - 2 * pad_x
    tiles = -(-height // 4) * -(-width // 4)
    return bool(16 * tiles <= 2.4 * height * width and size[0] * tiles >= FEW)


def faster(x: Tensor, weight: Tensor, how: Any, *, back: bool = False) -> bool:
    """Whether these kernels pay off for x as it is laid out."""
    return x.is_contiguous(memory_format=torch.channels_last) and pays_off(x, weight, how, back=back)


def conv(x: Tensor, weight: Tensor, padding: tuple[int, int], after: After = NOTHING) -> Tensor:
    """Return the convolution of x (N, C, H, W) with weights (C', C, 3, 3), or what follows it; channels last."""
    return _conv(x, *_steps(weight), padding, after)


def back(g: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    """Return the derivative of ⟨g, x ∗ w⟩ with respect to x: a convolution of g with the weights rotated by 180°."""
    weight, by_output, by_channel, by_place = _steps(weight)
    turned = weight.transpose(0, 1)[:, :, 2:, 2:]  # beginning with its last place
    return _conv(g, turned, by_channel, by_output, -by_place, (2 - padding[0], 2 - padding[1]))


def by_weight(x: Tensor, g: Tensor, like: Tensor, padding: tuple[int, int]) -> Tensor:
    """Return the derivative of ⟨g, x ∗ w⟩ with respect to w, in the layout of ``like``."""
    x, g, (found, *steps) = _last(x), _last(g), _steps(torch.empty_like(like))
    call("winograd_by_weight", x.dtype, _tiles(x.shape, g.shape[1], padding, threads()), x, g, found, *steps)
    return found


def _conv(
    x: Tensor,
    weight: Tensor,
    by_output: int,
    by_channel: int,
    by_place: int,
    padding: tuple[int, int],
    after: After = NOTHING,
) -> Tensor:
    x, (outputs, channels) = _last(x), weight.shape[:2]
    shape = _tiles(x.shape, outputs, padding, threads())
    u = x.new_empty(36 * -(-outputs // 32) * 32 * channels)
    y = x.new_empty(len(x), shape.out_height, shape.out_width, outputs).permute(0, 3, 1, 2)
    call("winograd_weights", x.dtype, channels, outputs, weight, by_output, by_channel, by_place, u, threads())
    call("winograd", x.dtype, shape, x, u, *after, y)
    return y


@functools.lru_cache(maxsize=4096)
def _tiles(size: torch.Size, outputs: int, padding: tuple[int, int], workers: int) -> Tiles:
    (images, channels, height, width), (pad_y, pad_x) = size, padding
    out_height, out_width = height + 2 * pad_y - 2, width + 2 * pad_x - 2
    down, across = -(-out_height // 4), -(-out_width // 4)
    share = -(-images * down * across // workers)
    block = min(BLOCK, -(-share // ROWS) * ROWS)
    return Tiles(
        images, height, width, channels, outputs, pad_y, pad_x, out_height, out_width, down, across, block, workers
    )  # fmt: skip


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _steps(weight: Tensor) -> tuple[Tensor, int, int, int]:
    """Return the weights, and the steps in memory from one output, channel and place to the next."""
    if not weight.is_contiguous():
        weight = _last(weight)
    return weight, weight.stride(0), weight.stride(1), weight.stride(3)
