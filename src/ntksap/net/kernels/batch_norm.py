"""BatchNorm with the statistics of the batch, in training."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ntksap.net.kernels.compiler import Unscriptable, available, call, refuse_recording, threads, transformed


class NativeBatchNorm2d(Unscriptable, nn.BatchNorm2d):
    """What a BatchNorm2d becomes for a while, see `ntksap.net.kernels.layers`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C, H, W)."""
        if not self.training:
            return super().forward(x)  # torch's own, which may be recorded
        refuse_recording(x)
        tensors = [t for t in (x, self.weight, self.bias, self.running_mean) if t is not None]
        alike = len({t.dtype for t in tensors}) == 1 and not transformed(*tensors)
        if not (alike and x.dim() == 4 and x.numel() > x.shape[1] and suits(x)):
            return super().forward(x)
        y, mean, variance = batch_norm(x, self.weight, self.bias, self.eps)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                count = x.numel() // x.shape[1]
                momentum = self.momentum
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
                    if momentum is None:
                        momentum = 1 / float(self.num_batches_tracked)
                self.running_mean.lerp_(mean, momentum or 0.0)
                self.running_var.lerp_(variance * (count / (count - 1)), momentum or 0.0)
        return y


def suits(x: Tensor) -> bool:
    """Whether the kernels can work on x (N, C, …)."""
    return (x.is_contiguous() or _last(x)) and available(x)


def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return γ·(x − μ)·r + β, r = 1/√(σ² + eps), of x (N, C, …); and μ (C,), σ² (C,), as constants."""
    y, mean, variance = _BatchNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]
    return y, mean, variance


def normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, statistics_only: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `batch_norm` returns, without a graph, and r (C,); y is x itself where only statistics are wanted."""
    for given in (weight, bias):
        if given is not None and len(given) != x.shape[1]:
            raise RuntimeError(f"BatchNorm of {len(given)} channels was given {x.shape[1]}")
    y = x if statistics_only else torch.empty_like(x)
    mean, variance, r = (x.new_empty(x.shape[1]) for _ in range(3))
    to = None if statistics_only else y
    name, sizes = _kernel("batch_norm", x)
    call(name, x.dtype, *sizes, x, to, weight, bias, eps, mean, variance, r, threads())
    return y, mean, variance, r


def derivatives(g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives with respect to x, γ and β, given the one with respect to y."""
    layout = torch.contiguous_format if x.is_contiguous() else torch.channels_last
    g, by_x = g.contiguous(memory_format=layout), torch.empty_like(x)
    by_weight, by_bias = x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    name, sizes = _kernel("batch_norm", x)
    call(name + "_backward", x.dtype, *sizes, x, g, weight, mean, r, by_x, by_weight, by_bias, threads())
    return by_x, by_weight, by_bias


def second_derivatives(
    v: Tensor, g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, r: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the derivatives of ⟨v, ∂/∂x⟩ with respect to g and x; x (N, C, H, W), channels last."""
    v, g = (t.contiguous(memory_format=torch.channels_last) for t in (v, g))
    by_g, by_x, rows = torch.empty_like(x), torch.empty_like(x), x.numel() // x.shape[1]
    call("batch_norm_twice", x.dtype, rows, x.shape[1], v, g, x, weight, mean, r, by_g, by_x, threads())
    return by_g, by_x


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
        y, mean, variance, r = normalised(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, r)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = derivatives(gradients[0], *ctx.saved_tensors)
        return *(one if wanted else None for one, wanted in zip(found, ctx.needs_input_grad, strict=False)), None


def _kernel(name: str, x: Tensor) -> tuple[str, tuple[int, ...]]:
    """Return the name of the kernel for the layout of x, and the sizes that it is given."""
    if x.is_contiguous():
        return name, (len(x), x.shape[1], x[0, 0].numel())
    return name + "_last", (x.numel() // x.shape[1], x.shape[1])


def _last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
