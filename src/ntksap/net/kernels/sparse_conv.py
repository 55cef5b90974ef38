"""Convolutions that touch the kept weights only."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ntksap.net.kernels import convolution, winograd
from ntksap.net.kernels.compiler import (
    NOTHING,
    After,
    Unscriptable,
    available,
    call,
    refuse_recording,
    threads,
    transformed,
)
from ntksap.net.kernels.geometry import Geometry, geometry, laid_out_like, without_skips
from ntksap.net.kernels.traversal import Traversal, fits, shape_of, traversal_of

DENSE = 0.45
"""The density above which torch's dense convolution is faster."""

NARROW = 8
"""The channels below which a convolution is narrow: dense kernels calculate with that many at once."""

NO_NORM: tuple[object, ...] = (None, None, None, None, 0)
"""Where no BatchNorm follows, see `carry_back`."""

Size: TypeAlias = int | Sequence[int]


def conv2d(
    x: Tensor, weight: Tensor, kept: Tensor, stride: Size = 1, padding: Any = 0, dilation: Size = 1, groups: int = 1
) -> Tensor:
    """Return torch's convolution without a bias, of the kept weights alone where that can be done and is faster.

    Weights that are not kept must be zero; where only kept ones are touched, their derivatives are 0.
    """
    if isinstance(padding, str):
        return functional.conv2d(x, weight, None, stride, padding, dilation, groups)
    how = _geometry(stride, padding, dilation, groups)
    usable = x.dim() == 4 and x.dtype == weight.dtype and available(x, weight)
    if not usable or transformed(x, weight):
        return _dense(x, weight, how)
    rival = winograd.pays_off(x, weight, how)
    if _faster(x, kept, how, rival):
        return sparse_conv2d(x, weight, kept, *how)
    if rival:
        return convolution.conv2d(x.contiguous(memory_format=torch.channels_last), weight, how).contiguous()
    return _dense(x, weight, how)


def sparse_conv2d(
    x: Tensor, weight: Tensor, kept: Tensor, stride: Size = 1, padding: Size = 0, dilation: Size = 1, groups: int = 1
) -> Tensor:
    """Return the convolution of x (N, C, H, W) with the weights where ``kept`` is True.

    Differentiable once with respect to x and the kept weights; the derivative of the others is 0, whatever it would be.
    """
    return moved(x, weight, kept, _geometry(stride, padding, dilation, groups))


def moved(x: Tensor, weight: Tensor, kept: Tensor, how: Geometry) -> Tensor:
    """Return what `sparse_conv2d` returns, for weights that move over the images in this way."""
    traversal = traversal_of(x, kept, how)
    if not torch.is_grad_enabled() or not (x.requires_grad or weight.requires_grad):
        return convolve(x.contiguous(), weight, traversal)
    y: Tensor = _SparseConv.apply(x.contiguous(), weight, traversal)  # type: ignore[no-untyped-call]
    return y


def by_kept_weights(
    x: Tensor, g: Tensor, kept: Tensor, stride: Size = 1, padding: Any = 0, dilation: Size = 1, groups: int = 1
) -> Tensor | None:
    """Return ∂⟨g_i, x ∗ w⟩/∂w (k, K) for the K kept weights, for one x (1, C, H, W) and each of g (k, C', H', W').

    None where dense kernels are faster or these cannot be used.
    """
    how = _geometry(stride, padding, dilation, groups)
    if transformed(x, g) or not available(x, g) or x.dtype != g.dtype or not _faster(x, kept, how):
        return None
    traversal, x, g = traversal_of(x, kept, how), x.contiguous(), g.contiguous()
    found = x.new_zeros(len(g), len(traversal.kept))
    side_by_side = torch.arange(len(traversal.kept), device="cpu")
    for one, to in zip(g, found, strict=True):
        _call_back(x, None, traversal, side_by_side, one, None, to, 1)
    return found


class SparseConv2d(Unscriptable, nn.Conv2d):
    """What a convolution becomes for a while, see `ntksap.net.kernels.layers`."""

    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C', H', W')."""
        refuse_recording(x)
        y = conv2d(x, self.weight, self.kept, self.stride, self.padding, self.dilation, self.groups)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)


def suits(layer: nn.Conv2d) -> bool:
    """Whether these kernels can do the layer's work."""
    plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    own = "weight" in layer._parameters  # not one that a hook computes before each call
    return plain and own and available(layer.weight)


def few(layer: nn.Conv2d, kept: Tensor) -> bool:
    """Whether so few weights are kept that these kernels are faster than dense ones with channels last."""
    if is_narrow(layer):
        return True
    limit = max(0.12, 6 / layer.in_channels) if winograd.fits(layer.weight, geometry(layer)) else DENSE
    return bool(kept.count_nonzero() <= limit * kept.numel())


def is_narrow(layer: nn.Conv2d) -> bool:
    """Whether a layer has so few channels that these kernels are faster than dense ones at any density; measured."""
    return layer.in_channels < NARROW and layer.out_channels <= NARROW and layer.groups == 1


def _dense(x: Tensor, weight: Tensor, how: Geometry) -> Tensor:
    weight = laid_out_like(x, weight)
    x, how = without_skips(x, weight.shape, how)
    return functional.conv2d(x, weight, None, *how)


def _faster(x: Tensor, kept: Tensor, how: Geometry, rival: bool = False) -> bool:
    """Whether these kernels are faster, for images that have their channels first; measured.

    In that layout torch's dense ones are slow on wide images with few channels; a rival is Winograd's algorithm, which
    has the channels last. In small images of odd size, much is padding here.
    """
    if not fits(x, kept, how):
        return False
    shape = shape_of(tuple(x.shape[1:]), tuple(kept.shape), how)
    limit = DENSE
    if rival:
        limit = max(0.2, 10 / shape.channels)
    elif shape.out_width % 16 == 0:
        limit = DENSE * max(1.0, (128 / shape.channels) ** 0.5)  # at any density with 16 channels
    if shape.out_width % 8 != 0:
        limit *= shape.out_height * shape.out_width / (shape.rows * shape.pitch)
    return bool(kept.count_nonzero() <= limit * kept.numel())


def _geometry(stride: Size, padding: Size, dilation: Size, groups: int) -> Geometry:
    pairs = [(size, size) if isinstance(size, int) else tuple(size) for size in (stride, padding, dilation)]
    return Geometry(pairs[0], pairs[1], pairs[2], groups)


def convolve(
    x: Tensor,
    weight: Tensor,
    traversal: Traversal,
    after: After = NOTHING,
    parts: Tensor | None = None,
) -> Tensor:
    """Return x ∗ w, or what follows it; ``parts`` (N, C', 2) are filled with what `normalised` takes."""
    shape, images = traversal.shape, x.shape[0]
    y = x.new_empty(images, shape.outputs, shape.out_height, shape.out_width)
    lists = (traversal.places_in(weight), traversal.first, traversal.where, traversal.back_first)
    call("sparse_conv", x.dtype, shape, images, x, weight, y, *lists, *after, parts, _workers(x, traversal))
    return y


def _workers(x: Tensor, traversal: Traversal) -> int:
    """Return how many threads have something to do: they share stacks of images, and waking one takes time."""
    return min(threads(), -(-x.shape[0] // traversal.shape.stack)) or 1


def carry_back(
    x: Tensor,
    weight: Tensor,
    traversal: Traversal,
    g: Tensor,
    wanted: Sequence[bool],
    norm: tuple[object, ...] = NO_NORM,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the derivatives of ⟨g, x ∗ w⟩ with respect to x and w, those that are wanted.

    Where BatchNorm followed, ``norm`` is what it was given, its a, b and k (see `ntksap.net.kernels.batch_norm`), and
    whether there was a ReLU that g has not passed through yet.
    """
    by_x = torch.empty_like(x) if wanted[0] else None
    by_weight = torch.zeros_like(weight) if wanted[1] else None  # in the weight's own layout, as DDP wants it
    if by_weight is not None and by_weight.stride() != weight.stride():  # there were gaps between weights
        weight = torch.empty_like(weight).copy_(weight)
    places = traversal.places_in(weight)
    _call_back(x, weight, traversal, places, g, by_x, by_weight, _workers(x, traversal), norm)
    return by_x, by_weight


def _call_back(
    x: Tensor,
    weight: Tensor | None,
    traversal: Traversal,
    places: Tensor,
    g: Tensor,
    by_x: Tensor | None,
    by_weight: Tensor | None,
    workers: int,
    norm: tuple[object, ...] = NO_NORM,
) -> None:
    """Let the kernel do it; ``places`` (K,) is where the kept weights lie in ``weight`` and ``by_weight``."""
    lists = (
        places,
        traversal.first,
        traversal.where,
        traversal.order,
        traversal.back_first,
        traversal.back_where,
    )
    arguments = (x.shape[0], x, weight, g, by_x, by_weight, *lists, *norm, workers)
    call("sparse_conv_backward", x.dtype, traversal.shape, *arguments)


class _SparseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, traversal: Traversal) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.traversal = traversal
        return convolve(x, weight, traversal)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        found = carry_back(x, weight, ctx.traversal, gradients[0].contiguous(), ctx.needs_input_grad)
        return *found, None
