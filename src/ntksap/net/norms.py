"""Normalisation layers with running statistics, and the statistics of one batch instead of those.

`Net` puts a `Statistics` around each evaluation of its private copy of a module.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ntksap._base import has_own_rules
from ntksap.net.batch_norm import batch_norm
from ntksap.net.kernels import batch_norm as native_norm
from ntksap.net.kernels import transformed

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class PlainBatchNorm(_BatchNorm):
    """Any of torch's BatchNorms in a private copy, where one process sees the whole batch.

    In evaluation mode it is y = x·s + (β − μ·s), s = γ/√(σ² + eps), which keeps no x for the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, …) → (N, C, …)."""
        if has_own_rules(x):  # a tensor with rules of its own, for torch's functions
            return super().forward(x)
        affine = [p for p in (self.weight, self.bias) if p is not None]
        if self.training and not torch.is_grad_enabled() and x.numel() > x.shape[1] and _plain(x):
            y, self.running_mean, variance, *_ = native_norm.normalised(x, self.weight, self.bias, self.eps)
            count = x.numel() // x.shape[1]
            self.running_var = variance * (count / (count - 1))
            return y
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


def _plain(x: Tensor) -> bool:
    """Whether our kernels can normalise x."""
    return native_norm.suits(x) and not transformed(x)


def _only_reverse_mode(x: Tensor) -> bool:
    """Whether derivatives with respect to x are wanted, and none of another kind."""
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
            layer.momentum = 1.0  # in training mode the buffers, which are scratch, become the statistics of the batch
            layer.register_forward_pre_hook(lambda layer, args, path=path: self._before(path, layer))
            layer.register_forward_hook(lambda layer, args, output, path=path: self._after(path, layer))
        for part in skeleton.modules():
            if type(part) in _PLAIN:
                part.__class__ = PlainBatchNorm

    @contextmanager
    def using(
        self, *, batch: bool = False, given: Mapping[str, Tensor] | None = None, taken: dict[str, Tensor] | None = None
    ) -> Iterator[None]:
        """Let the layers use the statistics of the batch, which are put into ``taken``, or the ``given`` buffers.

        A layer that is called several times has statistics for each call: those of the first are named like its
        buffers, ``path.running_mean``; those of later ones ``path.running_mean.1`` and so on.
        """
        for layer in (*self.layers.values(), *self._untracked):
            layer.train(batch)
        self._calls, self._given, self._taken = {}, given or {}, taken
        try:
            yield
        finally:
            self._given, self._taken = {}, None

    def _before(self, path: str, layer: _NormBase) -> None:
        call = self._calls[path] = self._calls.get(path, -1) + 1
        mean, var = _names(path, call)
        if call and mean in self._given:
            layer.running_mean, layer.running_var = self._given[mean], self._given[var]

    def _after(self, path: str, layer: _NormBase) -> None:
        if self._taken is not None and layer.running_mean is not None and layer.running_var is not None:
            mean, var = _names(path, self._calls[path])
            self._taken[mean], self._taken[var] = layer.running_mean.clone(), layer.running_var.clone()


def _names(path: str, call: int) -> list[str]:
    """Return the names of the statistics of one call of a layer."""
    return [f"{path}.{key}".lstrip(".") + (f".{call}" if call else "") for key in ("running_mean", "running_var")]
