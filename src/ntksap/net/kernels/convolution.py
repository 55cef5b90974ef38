"""Convolutions for scoring: faster dense kernels where there are any, and cheap derivatives of every order.

Torch's own second derivative takes detours through kernels as large as the image.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ntksap.net.kernels import winograd
from ntksap.net.kernels.compiler import Unscriptable, refuse_recording, transformed
from ntksap.net.kernels.geometry import Geometry, geometry, without_skips


class PlainConv2d(Unscriptable, nn.Conv2d):
    """What a convolution becomes for a while, see `ntksap.net.kernels.layers`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        refuse_recording(input)
        if self.padding_mode != "zeros" or self.padding == "same":
            return super()._conv_forward(input, weight, bias)  # type: ignore[no-any-return]
        x, how = without_skips(input, weight.shape, geometry(self))
        plain = x.dim() == 4 and len(x) > 1  # a single image takes less time than Python's function calls
        if not plain or transformed(x, weight) or torch.is_autocast_enabled(x.device.type):
            return functional.conv2d(x, weight, bias, *how)
        y = conv2d(x, weight, how)
        return y if bias is None else y + bias.view(-1, 1, 1)


def conv2d(x: Tensor, weight: Tensor, how: Geometry) -> Tensor:
    """Return x (N, C, H, W) ∗ w; differentiable any number of times."""
    y: Tensor = _Conv.apply(x, weight, how)  # type: ignore[no-untyped-call]
    return y


# Three functions of two tensors, each linear in both; the derivatives of each are the other two.


class _Conv(torch.autograd.Function):
    """x, w ↦ x ∗ w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        if winograd.faster(x, weight, how):
            return winograd.conv(x, weight, how.padding)
        return torch.ops.aten.convolution(x, weight, None, *how.arguments)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (by_x, by_weight, _), g = ctx.saved_tensors, ctx.needs_input_grad, gradients[0]
        return (
            _Back.apply(g, weight, x.detach(), ctx.how) if by_x else None,  # type: ignore[no-untyped-call]
            _ByWeight.apply(x, g, weight, ctx.how) if by_weight else None,  # type: ignore[no-untyped-call]
            None,
        )


class _Back(torch.autograd.Function):
    """g, w ↦ the derivative of ⟨g, x ∗ w⟩ with respect to x, which has the shape and layout of ``like``."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, weight: Tensor, like: Tensor, how: Geometry) -> Tensor:
        ctx.save_for_backward(g, weight)
        ctx.how = how
        if winograd.faster(g, weight, how, back=True):
            return winograd.back(g, weight, how.padding)
        wanted = [True, False, False]
        return torch.ops.aten.convolution_backward(g, like, weight, None, *how.arguments, wanted)[0]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g, weight), (by_g, by_weight, *_), v = ctx.saved_tensors, ctx.needs_input_grad, gradients[0]
        return (
            _Conv.apply(v, weight, ctx.how) if by_g else None,  # type: ignore[no-untyped-call]
            _ByWeight.apply(v, g, weight, ctx.how) if by_weight else None,  # type: ignore[no-untyped-call]
            None,
            None,
        )


class _ByWeight(torch.autograd.Function):
    """x, g ↦ the derivative of ⟨g, x ∗ w⟩ with respect to w, which has the shape and layout of ``like``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, like: Tensor, how: Geometry) -> Tensor:
        ctx.save_for_backward(x, g)
        ctx.how = how
        ctx.layout = torch.contiguous_format if like.is_contiguous() else torch.channels_last
        if winograd.faster(x, like, how):
            return winograd.by_weight(x, g, like, how.padding)
        wanted = [False, True, False]
        return torch.ops.aten.convolution_backward(g, x, like, None, *how.arguments, wanted)[1]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, g), (by_x, by_g, *_) = ctx.saved_tensors, ctx.needs_input_grad
        u = gradients[0].contiguous(memory_format=ctx.layout)  # which decides the kernel that torch uses
        return (
            _Back.apply(g, u, x.detach(), ctx.how) if by_x else None,  # type: ignore[no-untyped-call]
            _Conv.apply(x, u, ctx.how) if by_g else None,  # type: ignore[no-untyped-call]
            None,
            None,
        )
