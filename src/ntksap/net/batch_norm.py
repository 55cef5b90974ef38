"""BatchNorm over the batch, with a cheap second derivative (torch's own takes more time than the convolutions)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ntksap.net.kernels import available
from ntksap.net.kernels import batch_norm as native_norm


def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return γ·x̂ + β, x̂ = (x − μ)·r, r = 1/√(σ² + eps), μ and σ² of the batch: twice differentiable, in x only.

    Per channel, with P(u) = u − mean(u) − x̂·mean(u·x̂): the derivative is g ↦ γ·r·P(g).
    """
    y: Tensor = _Forward.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return y


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        if native_norm.suits(x):
            y, mean, _, r, *_ = native_norm.normalised(x, weight, bias, eps)
        else:
            y, mean, r = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        ctx.save_for_backward(x, weight, mean, r)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        by_x: Tensor = _Backward.apply(g[0], *ctx.saved_tensors, ctx.eps)  # type: ignore[no-untyped-call]
        return by_x, None, None, None


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, r: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(g, x, weight, mean, r)
        if native_norm.suits(x):
            by_x = native_norm.derivatives(native_norm.laid_out_like(x, g), x, weight, mean, r).by_x
            assert by_x is not None
            return by_x
        wanted = [True, False, False]
        arguments = (g, x, weight, None, None, mean, r, True, eps, wanted)
        return torch.ops.aten.native_batch_norm_backward(*arguments)[0]  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *vs: Tensor) -> tuple[Tensor | None, ...]:
        """With means over the batch v̄, ḡ, s = mean(v·x̂), c = mean(g·x̂) and q = mean(v·g) − v̄·ḡ − s·c:

        with respect to g:  γ·r·(v − v̄ − s·x̂)
        with respect to x:  −γ·r²·(c·v + s·g + (q − 2·c·s)·x̂ − c·v̄ − s·ḡ), μ and r being functions of x.
        """
        g, x, weight, mean, r = ctx.saved_tensors
        v, shape = vs[0], x.shape
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and available(x, v, g):
            return *native_norm.second_derivatives(v, g, x, weight, mean, r), None, None, None, None
        order = (0, *range(2, x.dim()), 1)
        v, g, x = (t.permute(order).reshape(-1, shape[1]) for t in (v, g, x))  # (M, C): a view with channels last
        hat = torch.addcmul(-mean * r, x, r)
        mean_v, mean_g, s, c, vg = (_mean(t) for t in (v, g, v * hat, g * hat, v * g))
        scale = r if weight is None else r * weight
        by_g = torch.addcmul(-scale * mean_v, v, scale).addcmul_(hat, -scale * s)
        q = vg - mean_v * mean_g - s * c
        back = -scale * r
        by_x = torch.addcmul(-back * (c * mean_v + s * mean_g), v, back * c)
        by_x.addcmul_(g, back * s).addcmul_(hat, back * (q - 2 * c * s))
        places = (shape[0], *shape[2:], shape[1])
        first = (0, len(shape) - 1, *range(1, len(shape) - 1))
        return by_g.view(places).permute(first), by_x.view(places).permute(first), None, None, None, None


def _mean(values: Tensor) -> Tensor:
    """Mean over the rows (M, C) → (C,). As a product: sums over rows are slow."""
    return (values.new_ones(1, len(values)) @ values)[0] / len(values)
