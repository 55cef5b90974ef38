"""A convolution, BatchNorm, a sum and a ReLU as one: relu(BN(x ∗ w) + add), while an image is in the cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from ntksap.net.kernels import winograd
from ntksap.net.kernels.batch_norm import batch_norm, derivatives, finish, laid_out_like, normalised, suits, track
from ntksap.net.kernels.choice import DENSE, KEPT, TORCH, Chooser
from ntksap.net.kernels.chosen import ChosenBatchNorm2d, ChosenConv2d
from ntksap.net.kernels.compiler import After, transformed, usable
from ntksap.net.kernels.geometry import geometry
from ntksap.net.kernels.sparse_conv import carry_back, convolve
from ntksap.net.kernels.traversal import Traversal, traversal_of

FUSED = "fused"
"""The way in which everything is done while an image is in the cache; `TORCH` is layer by layer."""
FUSED_KEPT = "fused by kept weights"
"""The same by the kept weights, where the convolution alone would be done faster in another way."""


class Chain:
    """Layers that follow one another, as a function of x (N, C, H, W) and what is added, (N, C', H', W') or None.

    In training, and in evaluation without derivatives, all is done as one where that is faster; otherwise, and where
    a layer has hooks, by the layers themselves.
    """

    def __init__(
        self, conv: ChosenConv2d, norm: ChosenBatchNorm2d, relu: Callable[[Tensor], Tensor] | None, chooser: Chooser
    ) -> None:
        """Join these layers; ``relu`` is None if there is no ReLU at the end."""
        self.conv, self.norm, self.relu, self.chooser = conv, norm, relu, chooser

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Return relu(BN(x ∗ w) + add)."""
        way = self._way(x, add)
        return self._apart(x, add) if way == TORCH else self._fused(way, x, add)

    def _apart(self, x: Tensor, add: Tensor | None) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        y = y if add is None else y + add
        return y if self.relu is None else self.relu(y)

    def _way(self, x: Tensor, add: Tensor | None) -> str:
        """Return the fastest way for such x; `TORCH` where not all can be done as one."""
        conv, norm = self.conv, self.norm
        weight, bias, mean = conv._parameters["weight"], conv._parameters["bias"], norm._buffers["running_mean"]
        assert weight is not None
        if self.chooser.leaves_to_torch(x, weight, norm.training):
            return TORCH
        if not usable(x, weight) or x.dim() != 4 or not suits(x) or x.shape[1] != conv.in_channels:
            return TORCH
        others = [t for t in (bias, add, mean, *norm._parameters.values()) if t is not None]
        if transformed(*others) or any(t.dtype != x.dtype or not t.is_cpu for t in others):
            return TORCH
        if any(map(_watched, (conv, norm, self.relu))) or _has_any_global_hook():
            return TORCH
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, *others))
        if not norm.training and (mean is None or learns):
            return TORCH
        size = conv.size_of(x)
        if min(size) < 1 or size.numel() <= size[1] or (add is not None and add.shape != size):
            return TORCH  # torch has errors for these, and other meanings
        asked = (learns and x.requires_grad, learns and weight.requires_grad, norm.training)
        return self.chooser.way(x, asked, lambda: self._ways(x, add, learns))

    def _ways(self, x: Tensor, add: Tensor | None, learns: bool) -> dict[str, Any]:
        """Return the ways to do all of the work once, on leaves of their own; no statistics are remembered."""
        conv, norm = self.conv, self.norm
        given = (x, conv.weight, norm.weight, norm.bias, add)
        leaves = [None if t is None else t.detach().requires_grad_(learns and t.requires_grad) for t in given]
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        way = conv.way(x, conv.weight, conv.bias)

        def apart(x: Tensor, weight: Tensor, scale: Any, shift: Any, add: Any) -> Tensor:
            y = conv.work(way)(x, weight, conv.bias)
            if norm.training:
                y = functional.batch_norm(y, None, None, scale, shift, training=True, eps=norm.eps)
            else:
                y = functional.batch_norm(y, norm.running_mean, norm.running_var, scale, shift, eps=norm.eps)
            y = y if add is None else y + add
            return y if self.relu is None else functional.relu_(y)

        def fused(way: str) -> Any:
            return lambda *leaves: self._joined(way, *leaves)[0]

        def once(work: Any) -> None:
            with torch.set_grad_enabled(bool(wanted)):
                z = work(*leaves)
            if wanted:
                torch.autograd.grad(z, wanted, torch.ones_like(z))

        ways = {TORCH: lambda: once(apart), FUSED: lambda: once(fused(way))}
        if way != KEPT and x.is_contiguous() and KEPT in conv.fitting(x):
            ways[FUSED_KEPT] = lambda: once(fused(KEPT))
        return ways

    def _fused(self, how: str, x: Tensor, add: Tensor | None) -> Tensor:
        conv, norm = self.conv, self.norm
        way = KEPT if how == FUSED_KEPT else conv.way(x, conv.weight, conv.bias)
        z, statistics = self._joined(way, x, conv.weight, norm.weight, norm.bias, add)
        if statistics is not None:
            track(norm, *statistics, z.numel() // z.shape[1])
        return z

    def _joined(
        self, way: str, x: Tensor, weight: Tensor, scale: Tensor | None, shift: Tensor | None, add: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Return z, and μ (C',) and σ² (C',) of the batch in training; the convolution goes this way."""
        conv, norm, relu = self.conv, self.norm, self.relu is not None
        first = x.is_contiguous()
        add = None if add is None else laid_out_like(x, add)
        if norm.training:
            if way == KEPT and first and conv.bias is None:
                assert conv.kept is not None
                traversal = traversal_of(x, conv.kept, geometry(conv))
                z, mean, variance = _ConvNorm.apply(x, weight, scale, shift, add, traversal, norm.eps, relu)  # type: ignore[no-untyped-call]
            else:
                y = laid_out_like(x, conv.work(way)(x, weight, conv.bias))
                z, mean, variance = batch_norm(y, scale, shift, norm.eps, add, relu=relu)
            return z, (mean, variance)
        a, b = _line(norm, scale, shift, conv.bias)
        if way == KEPT and first:
            assert conv.kept is not None
            return convolve(x, weight, traversal_of(x, conv.kept, geometry(conv)), After(a, b, add, relu)), None
        if way == DENSE and winograd.faster(x, weight, geometry(conv)):
            return winograd.conv(x, weight, conv.padding, After(a, b, add, relu)), None  # type: ignore[arg-type]
        y = laid_out_like(x, conv.work(way)(x, weight, None))
        return finish(y, a, b, add, relu=relu), None


class _ConvNorm(torch.autograd.Function):
    """relu(BN(x ∗ w) + add) by the kept weights, channels first; and μ, σ², as constants."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        add: Tensor | None,
        traversal: Traversal,
        eps: float,
        relu: bool,
    ) -> tuple[Tensor, ...]:
        parts = x.new_empty(len(x), traversal.shape.outputs, 2, dtype=torch.float64)
        y = convolve(x, weight, traversal, parts=parts)
        z, mean, variance, r, a, b = normalised(y, scale, shift, eps, add, relu=relu, parts=parts)
        ctx.traversal, ctx.relu = traversal, relu
        ctx.save_for_backward(x, weight, y, scale, mean, r, a, b, z if relu and add is not None else None)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)  # no zeros for those two
        return z, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y, scale, mean, r, a, b, z = ctx.saved_tensors
        g = gradients[0].contiguous()
        found = derivatives(g, y, scale, mean, r, (a, b) if ctx.relu else None, z, by_x=False)
        norm = (y, a, b, found.k, int(ctx.relu and z is None))
        by_x, by_weight = carry_back(x, weight, ctx.traversal, found.by_add, ctx.needs_input_grad, norm)
        every = by_x, by_weight, *found[1:4]
        return (
            *(one if wanted else None for one, wanted in zip(every, ctx.needs_input_grad, strict=False)),
            None,
            None,
            None,
        )


def _line(
    norm: nn.BatchNorm2d, scale: Tensor | None, shift: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return a (C',) and b (C',) with which BatchNorm in evaluation is a·(x ∗ w) + b; a bias came before it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    a = torch.rsqrt(norm.running_var + norm.eps)
    a = a if scale is None else a * scale
    off = norm.running_mean if bias is None else norm.running_mean - bias
    return a, -off * a if shift is None else torch.addcmul(shift, off, a, value=-1)


def _watched(layer: object) -> bool:
    """Whether somebody wants to know when this layer is called."""
    if not isinstance(layer, nn.Module):
        return False
    before = layer._forward_pre_hooks or layer._backward_pre_hooks
    return bool(before or layer._forward_hooks or layer._backward_hooks)
