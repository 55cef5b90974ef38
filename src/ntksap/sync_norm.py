"""BatchNorm over the batches of all processes together."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Total(torch.autograd.Function):
    """y = Σ x over the processes; the derivative by each x is the sum of the processes' derivatives by y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _SyncNorm(_BatchNorm):
    """Normalise by the mean and variance over the batches of a whole process group; derivatives flow through both.

    torch's own ``nn.SyncBatchNorm`` has fused kernels but works on GPUs only; this one is for the others.
    """

    process_group: dist.ProcessGroup

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        count = torch.tensor([float(input.numel() // input.shape[1])], dtype=input.dtype, device=input.device)
        sums = self._total(torch.cat([input.sum(axes), count]))
        total, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = input - mean.view(shape)
        variance = self._total(centred.square().sum(axes)) / total
        self._remember(mean.detach(), variance.detach() * total / (total - 1))
        output: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output

    def _total(self, x: Tensor) -> Tensor:
        total: Tensor = _Total.apply(x, self.process_group)  # type: ignore[no-untyped-call]
        return total

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
