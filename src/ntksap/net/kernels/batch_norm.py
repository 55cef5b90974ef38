"""BatchNorm with the statistics of the batch, in training; also with what usually follows it, a sum and a ReLU."""

from typing import Any, NamedTuple

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
        track(self, mean, variance, x.numel() // x.shape[1])
        return y


def track(layer: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Let a layer remember the statistics μ (C,), σ² (C,) of a batch with ``count`` numbers per channel."""
    if not layer.track_running_stats or layer.running_mean is None or layer.running_var is None:
        return
    with torch.no_grad():
        momentum = layer.momentum
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1 / float(layer.num_batches_tracked)
        layer.running_mean.lerp_(mean, momentum or 0.0)
        layer.running_var.lerp_(variance * (count / (count - 1)), momentum or 0.0)


def suits(x: Tensor) -> bool:
    """Whether the kernels can work on x (N, C, …)."""
    return (x.is_contiguous() or _last(x)) and available(x)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    add: Tensor | None = None,
    *,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z = γ·(x − μ)·r + β, r = 1/√(σ² + eps), of x (N, C, …); and μ (C,), σ² (C,), as constants.

    With ``add`` (N, C, …), laid out like x, and with ``relu``: relu(z + add). Differentiable once.
    """
    y, mean, variance = _BatchNorm.apply(x, weight, bias, add, eps, relu)  # type: ignore[no-untyped-call]
    return y, mean, variance


class Normalised(NamedTuple):
    """What became of x: z, and for each channel μ, σ², r, and a, b with which z = relu(a·x + b + add)."""

    z: Tensor
    mean: Tensor
    variance: Tensor
    r: Tensor
    a: Tensor
    b: Tensor


def normalised(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    add: Tensor | None = None,
    *,
    relu: bool = False,
    parts: Tensor | None = None,
) -> Normalised:
    """Return what `batch_norm` computes, without a graph.

    ``parts`` (N, C, 2) are means and sums of squared distances of the planes of x, where they are known already.
    """
    for given in (weight, bias):
        if given is not None and len(given) != x.shape[1]:
            raise RuntimeError(f"BatchNorm of {len(given)} channels was given {x.shape[1]}")
    found = Normalised(torch.empty_like(x), *(x.new_empty(x.shape[1]) for _ in range(5)))
    arguments = (weight, bias, eps, *found[1:], add, int(relu), found.z, threads())
    if x.is_contiguous():
        call("batch_norm", x.dtype, *_first(x), x, parts, *arguments)
    else:
        call("batch_norm_last", x.dtype, *_rows(x), x, *arguments)
    return found


def finish(y: Tensor, a: Tensor, b: Tensor, add: Tensor | None, *, relu: bool) -> Tensor:
    """Return relu(a·y + b + add) in place of y (N, C, …), with a and b (C,) and add laid out like y."""
    name, sizes = ("finish_first", _first(y)) if y.is_contiguous() else ("finish_last", _rows(y))
    call(name, y.dtype, *sizes, y, a, b, add, int(relu), y, threads())
    return y


class Derivatives(NamedTuple):
    """Those of z with respect to x (None if not asked for), γ, β and what was added, and k (3, C) of the first."""

    by_x: Tensor | None
    by_weight: Tensor
    by_bias: Tensor
    by_add: Tensor
    k: Tensor


def derivatives(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    r: Tensor,
    relu: tuple[Tensor, Tensor] | None = None,
    z: Tensor | None = None,
    *,
    by_x: bool = True,
) -> Derivatives:
    """Return the derivatives, given g (N, C, …), the one with respect to z, laid out like x.

    ``relu`` is (a, b) of `Normalised` if there was a ReLU; then z must be given if something was added before it.
    The derivative with respect to x is k₀·g + k₁·x + k₂, with g after the ReLU.
    """
    # Where nothing was added, whether the ReLU let a number pass is known from x.
    through = None if z is None else torch.empty_like(x)
    by_weight, by_bias, k = x.new_empty(x.shape[1]), x.new_empty(x.shape[1]), x.new_empty(3, x.shape[1])
    by = torch.empty_like(x) if by_x else None
    name, sizes = ("batch_norm", _first(x)) if x.is_contiguous() else ("batch_norm_last", _rows(x))
    line = relu or (mean, mean)  # not read
    arguments = (x, g, z, int(relu is not None), *line, weight, mean, r, through, k, by, by_weight, by_bias)
    call(name + "_backward", x.dtype, *sizes, *arguments, threads())
    return Derivatives(by, by_weight, by_bias, g if through is None else through, k)


def second_derivatives(
    v: Tensor, g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, r: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the derivatives of ⟨v, ∂/∂x⟩ with respect to g and x; x (N, C, H, W), channels last."""
    v, g = (t.contiguous(memory_format=torch.channels_last) for t in (v, g))
    by_g, by_x = torch.empty_like(x), torch.empty_like(x)
    call("batch_norm_twice", x.dtype, *_rows(x), v, g, x, weight, mean, r, by_g, by_x, threads())
    return by_g, by_x


def laid_out_like(x: Tensor, g: Tensor) -> Tensor:
    """Return g with its channels where those of x are."""
    return g.contiguous(memory_format=torch.contiguous_format if x.is_contiguous() else torch.channels_last)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, add: Tensor | None, eps: float, relu: bool
    ) -> tuple[Tensor, ...]:
        z, mean, variance, r, a, b = normalised(x, weight, bias, eps, add, relu=relu)
        ctx.relu = relu
        ctx.save_for_backward(x, weight, mean, r, a, b, z if relu and add is not None else None)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)  # no zeros for those two
        return z, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, r, a, b, z = ctx.saved_tensors
        g = laid_out_like(x, gradients[0])
        found = derivatives(g, x, weight, mean, r, (a, b) if ctx.relu else None, z)
        return (
            *(one if wanted else None for one, wanted in zip(found[:4], ctx.needs_input_grad[:4], strict=True)),
            None,
            None,
        )


def _first(x: Tensor) -> tuple[int, int, int]:
    """Return images, channels and places of x (N, C, …), channels first."""
    images, channels = x.shape[:2]
    return images, channels, x.shape[2:].numel()


def _rows(x: Tensor) -> tuple[int, int]:
    """Return rows and channels of x (N, C, H, W), channels last."""
    return x.numel() // x.shape[1], x.shape[1]


def _last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
