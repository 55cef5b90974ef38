"""Layers that go the fastest way, see `ntksap.net.kernels.choice`."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from ntksap.net.kernels import winograd
from ntksap.net.kernels.batch_norm import NativeBatchNorm2d, batch_norm
from ntksap.net.kernels.batch_norm import suits as normalises
from ntksap.net.kernels.choice import DENSE, KEPT, TORCH, Chooser, density_of, learning, whole
from ntksap.net.kernels.compiler import Unscriptable, refuse_recording, usable
from ntksap.net.kernels.convolution import conv2d
from ntksap.net.kernels.geometry import geometry, laid_out_like, without_skips
from ntksap.net.kernels.sparse_conv import moved
from ntksap.net.kernels.sparse_linear import MOST, sparse_linear
from ntksap.net.kernels.traversal import fits

MANY = 0.6
"""The density above which dense products are faster without measuring."""

Work: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x, weight, bias) → y."""
Once: TypeAlias = Callable[[], object]
Ways: TypeAlias = dict[str, Once]
Bias: TypeAlias = Tensor | None
"""Names for annotations of inner functions, which Python would otherwise work out in every call of a layer."""


def fastest(
    chooser: Chooser,
    work: Callable[[str], Work],
    fitting: Callable[[], Iterable[str]],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> str:
    """Return the fastest way for such x, of those that fit; torch's where no other can be trusted."""
    if not usable(x, weight):
        return TORCH
    learns = learning(x, weight)

    def looked_up(once: Once) -> Once:
        # Every call that torch does not do pays for this look-up: in small layers, as much as other kernels save.
        def both() -> None:
            refuse_recording(x)
            if usable(x, weight):
                chooser.known(x, learning(x, weight))
            once()

        return both

    def ways() -> Ways:
        every = {way: whole(work(way), x, weight, bias, learns) for way in (TORCH, *fitting())}
        return {way: once if way == TORCH else looked_up(once) for way, once in every.items()}

    return chooser.way(x, learns, ways)


class ChosenConv2d(Unscriptable, nn.Conv2d):
    """What a convolution becomes for a while, see `ntksap.net.kernels.layers`. Results have the layout of images."""

    chooser: Chooser
    kept: Tensor | None
    thin: bool
    """Whether torch must be spared a stride, see `ntksap.net.kernels.geometry`."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C', H', W')."""
        own = self._parameters  # as attributes, Python finds them later than anything else
        weight, bias = own["weight"], own["bias"]
        assert weight is not None
        if self.chooser.leaves_to_torch(x, weight):
            return self._by_torch(x, weight, bias)
        refuse_recording(x)
        return self.work(self.way(x, weight, bias))(x, weight, bias)

    def work(self, way: str) -> Work:
        """Return what does the work in this way."""
        return self._by_kept if way == KEPT else self._dense if way == DENSE else self._by_torch

    def way(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
        """Return the fastest way for such images."""
        return fastest(self.chooser, self.work, lambda: self.fitting(x), x, weight, bias)

    def size_of(self, x: Tensor) -> torch.Size:
        """Return the size of the result for images x (N, C, H, W)."""
        how = geometry(self)
        sides = zip(x.shape[2:], how.padding, how.dilation, self.kernel_size, how.stride, strict=True)
        return torch.Size(
            (len(x), self.out_channels, *((s + 2 * p - d * (k - 1) - 1) // t + 1 for s, p, d, k, t in sides))
        )

    def fitting(self, x: Tensor) -> Iterator[str]:
        """Yield the ways besides torch's that may be faster for such images."""
        if x.dim() != 4:
            return
        how = geometry(self)
        if winograd.pays_off(x, self.weight, how):
            yield DENSE
        if self.kept is not None and fits(x, self.kept, how):
            yield KEPT

    def _by_torch(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        laid_out = laid_out_like(x, weight)
        if laid_out is weight and not self.thin:
            return self._conv_forward(x, weight, bias)  # type: ignore[no-any-return]
        self.chooser.gone.add("torch, with care")
        x, how = without_skips(x, weight.shape, geometry(self))
        return functional.conv2d(x, laid_out, bias, *how)

    def _dense(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = conv2d(x.contiguous(memory_format=torch.channels_last), weight, geometry(self))
        return _laid_out(_with(y, bias), x)

    def _by_kept(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert self.kept is not None
        return _laid_out(_with(moved(x, weight, self.kept, geometry(self)), bias), x)


class ChosenBatchNorm2d(NativeBatchNorm2d):
    """What a BatchNorm2d becomes for a while; in training it has something to choose."""

    chooser: Chooser

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C, H, W)."""
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        if not self.training:
            return self._evaluated(x, weight, bias)
        if weight is not None and self.chooser.leaves_to_torch(x, weight):
            return nn.BatchNorm2d.forward(self, x)
        several = x.dim() == 4 and x.numel() > x.shape[1]  # torch has an error for one number per channel
        if not (weight is not None and several and usable(x, weight) and normalises(x)):
            return super().forward(x)
        learns = learning(x, weight)

        def ways() -> Ways:
            works = {TORCH: self._by_torch, DENSE: self._dense}
            return {way: whole(work, x, weight, bias, learns) for way, work in works.items()}

        if self.chooser.way(x, learns, ways) == TORCH:
            refuse_recording(x)
            return nn.BatchNorm2d.forward(self, x)
        return super().forward(x)

    def _evaluated(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return what torch's own layer does, in fewer steps of Python."""
        mean, variance = self._buffers["running_mean"], self._buffers["running_var"]
        if mean is None or variance is None or x.dim() != 4:
            return nn.BatchNorm2d.forward(self, x)
        return functional.batch_norm(x, mean, variance, weight, bias, False, self.momentum or 0.0, self.eps)

    def _by_torch(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.batch_norm(x, None, None, weight, bias, training=True, eps=self.eps)

    def _dense(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return batch_norm(x, weight, bias, self.eps)[0]


class _ChosenLinear(Unscriptable):
    """The forward pass of a linear layer, of torch or of transformers."""

    chooser: Chooser
    kept: Tensor
    turned = False
    """Whether weights are (inputs, outputs)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        own = self._parameters
        return chosen_linear(self.chooser, x, own["weight"], own["bias"], self.kept, turned=self.turned)


class ChosenLinear(_ChosenLinear, nn.Linear):
    """What a linear layer becomes for a while."""


@functools.cache
def chosen_conv1d(own: type[nn.Module]) -> type[nn.Module]:
    """Return what the linear layer of GPT-2 in transformers becomes for a while; ``own`` is its class."""
    return type("ChosenConv1D", (_ChosenLinear, own), {"turned": True})


def chosen_linear(
    chooser: Chooser, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor, *, turned: bool = False
) -> Tensor:
    """Return x (…, inputs) · Wᵀ + b by the fastest way; ``turned``: weights and mask are those of Wᵀ."""
    if chooser.leaves_to_torch(x, weight):
        return functional.linear(x, weight.t() if turned else weight, bias)
    refuse_recording(x)

    def by_torch(x: Tensor, weight: Tensor, bias: Bias) -> Tensor:
        return functional.linear(x, weight.t() if turned else weight, bias)

    def by_kept(x: Tensor, weight: Tensor, bias: Bias) -> Tensor:
        return sparse_linear(x, weight, bias, kept, turned=turned)

    works = {TORCH: by_torch, KEPT: by_kept}
    way = fastest(chooser, works.__getitem__, lambda: (KEPT,) if few(kept) else (), x, weight, bias)
    return works[way](x, weight, bias)


def few(kept: Tensor) -> bool:
    """Return whether a linear layer with this mask has so few weights that kernels for kept weights may be faster."""
    return kept.numel() < MOST and density_of(kept).kept <= MANY * kept.numel()


def _with(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.view(-1, 1, 1)


def _laid_out(y: Tensor, like: Tensor) -> Tensor:
    """Return y with its channels where those of ``like`` are."""
    return y.contiguous() if like.is_contiguous() else y.contiguous(memory_format=torch.channels_last)
