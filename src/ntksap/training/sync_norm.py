"""BatchNorm over the batches of all processes together."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


class _Normalise(torch.autograd.Function):
    """y = γ·x̂ + β, x̂ = (x − μ)/√(σ² + eps), with μ and σ² over all N entries of a channel in all processes.

    Backward, with dy's sums over all processes: dx = γ/√(σ² + eps) · (dy − Σ dy/N − x̂ · Σ (dy·x̂)/N). In both
    directions torch's kernels for given statistics handle the large tensors.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor]:
        variance, mean = (part.double() for part in torch.var_mean(x, _all_but_channels(x), correction=0))
        count = mean.new_full((1,), x.numel() // x.shape[1])
        sums = torch.cat([mean * count, (variance + mean.square()) * count, count])
        dist.all_reduce(sums, group=group)
        total = float(sums[-1])
        mean, square = (sums[:-1] / total).chunk(2)
        variance = (square - mean.square()).clamp_min(0)
        ctx.save_for_backward(x, weight, mean.to(x), variance.to(x))
        ctx.eps, ctx.group, ctx.total = eps, group, total
        ctx.mark_non_differentiable(mean, variance)
        output = batch_norm(x, mean.to(x), variance.to(x), weight, bias, eps=eps)
        return output, mean, variance * total / max(total - 1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, variance = ctx.saved_tensors
        by_x, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        sums = torch.cat([by_bias, by_weight])
        dist.all_reduce(sums, group=ctx.group)
        plain, along = (sums / ctx.total).chunk(2)
        slope = torch.rsqrt(variance + ctx.eps)
        scale = -weight * slope.square() * along  # of x
        shift = -weight * slope * plain - scale * mean
        shape = [1, -1] + [1] * (x.dim() - 2)
        by_x = torch.addcmul(by_x.add_(shift.view(shape)), x, scale.view(shape))
        return by_x, by_weight, by_bias, None, None


class _SyncNorm(_BatchNorm):
    """Any of torch's BatchNorms, with statistics over a process group.

    torch's own ``nn.SyncBatchNorm`` works on GPUs only; this one is for the others.
    """

    process_group: dist.ProcessGroup

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        ones = torch.ones(input.shape[1], dtype=input.dtype, device=input.device)
        weight, bias = (self.weight, self.bias) if self.affine else (ones, torch.zeros_like(ones))
        output: Tensor
        output, mean, unbiased = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, weight, bias, self.eps, self.process_group
        )
        self._remember(mean, unbiased)
        return output

    @torch.no_grad()
    def _remember(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(unbiased.to(self.running_var), share)

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def synchronise_norms(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Make every BatchNorm of ``module`` take its statistics over ``group``; parameters and buffers stay."""
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            gpu = next(module.parameters()).is_cuda
            part.__class__ = nn.SyncBatchNorm if gpu else _SyncNorm
            part.process_group = group  # type: ignore[assignment]


def _all_but_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]
