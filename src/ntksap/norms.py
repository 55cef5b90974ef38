"""Normalisation layers with running statistics, and the statistics of one batch in their place.

`Net` puts a `Statistics` around each evaluation of its private copy of a module.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ntksap.batch_norm import batch_norm
from ntksap.native import norm as native_norm
from ntksap.native.compiler import transformed

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class PlainBatchNorm(_BatchNorm):
    """Any of torch's BatchNorms in a private copy, where one process sees the whole batch.

    In evaluation mode it is y = x·s + (β − μ·s), s = γ/√(σ² + eps), which keeps no x for the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, …) → (N, C, …)."""
        if torch.overrides.has_torch_function_unary(x):  # a tensor with rules of its own, for torch's functions
            return super().forward(x)
        affine = [p for p in (self.weight, self.bias) if p is not None]
        if self.training and _only_reverse_mode(x) and not any(p.requires_grad for p in affine):
            return batch_norm(x, self.weight, self.bias, self.eps)
        if self.training or self.running_var is None or self.running_mean is None or x.dtype != self.running_var.dtype:
            return super().forward(x)
        scale = torch.rsqrt(self.running_var + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -self.running_mean * scale
        if self.bias is not None:
            shift = shift + self.bias
        shape = (-1,) + (1,) * (x.dim() - 2)
        return torch.addcmul(shift.view(shape), x, scale.view(shape))

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def _only_reverse_mode(x: Tensor) -> bool:
    """Whether derivatives by x are wanted, and none of another kind."""
    return x.requires_grad and torch.is_grad_enabled() and x.numel() > x.shape[1] and not transformed(x)


class Norms:
    """The layers of a private copy that keep running statistics, by path; changes the copy to suit."""

    def __init__(self, skeleton: nn.Module) -> None:
        self.layers = {
            path: layer
            for path, layer in skeleton.named_modules()
            if isinstance(layer, _NormBase) and layer.running_mean is not None
        }
        self._untracked = [m for m in skeleton.modules() if isinstance(m, _NormBase) and m.running_mean is None]
        self._calls: dict[str, int] = {}
        self._given: Mapping[str, Tensor] = {}
        self._taken: dict[str, Tensor] | None = None
        for path, layer in self.layers.items():
            layer.register_forward_pre_hook(lambda layer, args, path=path: self._before(path, layer, args[0]))
        for part in skeleton.modules():
            if type(part) in _PLAIN:
                part.__class__ = PlainBatchNorm

    @contextmanager
    def using(
        self, *, batch: bool = False, given: Mapping[str, Tensor] | None = None, taken: dict[str, Tensor] | None = None
    ) -> Iterator[None]:
        """Let the layers normalise by the batch, by ``given`` buffers, or by what is then put into ``taken``.

        The latter two are constants. A layer that is called several times has statistics for each call: those of the
        first are named like its buffers, ``path.running_mean``; those of later ones ``path.running_mean.1`` and so on.
        """
        for layer in (*self.layers.values(), *self._untracked):
            layer.train(batch)
        self._calls, self._given, self._taken = {}, given or {}, taken
        try:
            yield
        finally:
            self._given, self._taken = {}, None

    def _before(self, path: str, layer: _NormBase, x: Tensor) -> None:
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        mean, var = (f"{path}.{key}".lstrip(".") + (f".{call}" if call else "") for key in _KEYS)
        if self._taken is not None:
            self._taken[mean], self._taken[var] = _mean_and_variance(layer, x.detach())
            layer.running_mean, layer.running_var = self._taken[mean], self._taken[var]
        elif call and mean in self._given:
            layer.running_mean, layer.running_var = self._given[mean], self._given[var]


_KEYS = ("running_mean", "running_var")


def _mean_and_variance(layer: _NormBase, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of each channel (C,), over batch and places; of InstanceNorm, the average of all."""
    count = x.numel() // x.shape[1]
    if isinstance(layer, _BatchNorm) and count > 1 and native_norm.suits(x) and not transformed(x):
        _, mean, var, _ = native_norm.normalised(x, None, None, layer.eps, statistics_only=True)
        return mean, var * (count / (count - 1))
    wide = torch.promote_types(x.dtype, torch.float32)
    mean, var = (torch.zeros(x.shape[1], dtype=wide, device=x.device) for _ in range(2))
    with torch.no_grad():
        if isinstance(layer, _BatchNorm):
            F.batch_norm(x.to(wide), mean, var, training=True, momentum=1.0)
        else:
            F.instance_norm(x.to(wide), mean, var, use_input_stats=True, momentum=1.0)
    return mean, var
