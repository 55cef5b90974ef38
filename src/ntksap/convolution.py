"""Convolutions with a cheap second derivative: torch's own takes detours through kernels as large as the image."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ntksap.native.sparse_conv import transformed

Geometry: TypeAlias = tuple[Any, Any, Any, bool, Any, int]
"""Stride, padding, dilation, transposed, output padding, groups: as torch's own convolution is given them."""


class TwiceConv2d(nn.Conv2d):
    """What a convolution becomes for a while, see `cheap_second_derivatives`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain = self.padding_mode == "zeros" and not isinstance(self.padding, str) and input.dim() == 4
        if not plain or transformed(input, weight) or torch.is_autocast_enabled(input.device.type):
            return super()._conv_forward(input, weight, bias)  # type: ignore[no-any-return]
        geometry = (self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        y: Tensor = _Forward.apply(input, weight, geometry)  # type: ignore[no-untyped-call]
        return y if bias is None else y + bias.view(-1, 1, 1)


@contextmanager
def cheap_second_derivatives(module: nn.Module) -> Iterator[None]:
    """Inside the block, results of 2d convolutions can be differentiated twice, faster than torch's, and not thrice."""
    layers = [part for part in module.modules() if type(part) is nn.Conv2d]
    try:
        for layer in layers:
            layer.__class__ = TwiceConv2d
        yield
    finally:
        for layer in layers:
            layer.__class__ = nn.Conv2d


class _Forward(torch.autograd.Function):
    """y = x ∗ w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return _conv(x, weight, geometry)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        return *_Backward.apply(g[0], *ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad[:2]), None  # type: ignore[no-untyped-call]


class _Backward(torch.autograd.Function):
    """The derivatives of ⟨g, x ∗ w⟩ by x and w, as functions of g, x and w."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(g, x, weight)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return _derivatives(g, x, weight, geometry, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *vs: Tensor | None) -> tuple[Tensor | None, ...]:
        """With v by x's derivative and u by w's: x ∗ u + v ∗ w by g, and what ⟨g, x ∗ u⟩ and ⟨g, v ∗ w⟩ depend on."""
        (g, x, weight), (v, u), how = ctx.saved_tensors, vs, ctx.geometry
        by_g = by_x = by_weight = None
        if u is not None:
            u = torch.empty_like(weight).copy_(u)  # in the weight's layout, which decides what kernel is used
            by_g = _conv(x, u, how)
            by_x = _derivatives(g, x, u, how, (True, False))[0] if ctx.needs_input_grad[1] else None
        if v is not None:
            through = _conv(v, weight, how)
            by_g = through if by_g is None else by_g.add_(through)
            by_weight = _derivatives(g, v, weight, how, (False, True))[1]
        return by_g, by_x, by_weight, None, None


def _conv(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return torch.ops.aten.convolution(x, weight, None, *geometry)  # type: ignore[no-any-return]


def _derivatives(
    g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, ...]:
    found = torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [*wanted, False])
    return tuple(one if asked else None for one, asked in zip(found, wanted, strict=False))
