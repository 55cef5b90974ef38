"""What a mask will do to a model, before training: in numbers and in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ntksap._base import InputError
from ntksap.analysis.kernel_change import KernelChange, kernel_change
from ntksap.analysis.multiply_adds import cost
from ntksap.analysis.paths import log10_paths
from ntksap.analysis.reach import effective_masks
from ntksap.net import by_output, unwrap
from ntksap.pruning import MakeInputs, without_followers


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer: weights that are kept, those of them that lie on a path, and channels and kernels with any of these.

    A channel is an output of the layer; a kernel is a pair of an output and an input: in a linear layer, one weight.
    """

    name: str
    shape: tuple[int, ...]
    kept: int
    used: int
    total: int
    channels: int
    live_channels: int
    kernels: int
    live_kernels: int


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    ``log10_paths`` is the decimal logarithm of the number of paths from input to output (−∞ for none), or a text where
    they cannot be counted. ``kernel`` is None if it was not asked for, and a text if it could not be computed.
    """

    layers: tuple[LayerDiagnosis, ...]
    dense_flops: int
    inference_flops: int
    log10_paths: float | str
    uncounted: tuple[str, ...] = ()
    kernel: KernelChange | str | None = None

    @property
    def total(self) -> int:
        """Prunable weights."""
        return sum(layer.total for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """Share of prunable weights that are removed."""
        return 1 - sum(layer.kept for layer in self.layers) / self.total

    @property
    def effective_sparsity(self) -> float:
        """Share of prunable weights that are removed or that no path from input to output uses."""
        return 1 - sum(layer.used for layer in self.layers) / self.total

    @property
    def collapsed(self) -> list[str]:
        """Layers with nothing left."""
        return [layer.name for layer in self.layers if layer.kept == 0]

    @property
    def bypassed(self) -> bool:
        """Whether no kept weight lies on a path; shortcuts without prunable weights may still lead to the output."""
        return all(layer.used == 0 for layer in self.layers)

    @property
    def disconnected(self) -> bool:
        """Whether no path at all leads from input to output; False where that is not known, see ``log10_paths``."""
        return self.bypassed and self.log10_paths == -math.inf

    @property
    def units(self) -> tuple[int, int]:
        """Output channels of all layers that lie on a path, and how many there are."""
        return sum(layer.live_channels for layer in self.layers), sum(layer.channels for layer in self.layers)

    @property
    def kernels(self) -> tuple[int, int]:
        """Kernels of all layers that lie on a path, and how many there are."""
        return sum(layer.live_kernels for layer in self.layers), sum(layer.kernels for layer in self.layers)

    def sentences(self) -> list[str]:
        """Say it in words, the worst first."""
        said = []
        if self.disconnected:
            said.append("No path leads from the input to the output: the pruned network computes a constant.")
        elif self.bypassed:
            said.append("No kept weight lies on a path from input to output. Shortcuts may lead around them.")
        elif self.collapsed:
            said.append(f"Nothing is left of {', '.join(self.collapsed)}.")
            if self.log10_paths != -math.inf:
                them = "it" if len(self.collapsed) == 1 else "them"
                said[-1] += f" The network still has a path around {them}, such as a shortcut."
        idle = sum(layer.kept - layer.used for layer in self.layers)
        kept = sum(layer.kept for layer in self.layers)
        if idle == 0 and kept:
            said.append("Every kept weight lies on a path from input to output.")
        elif idle:
            true, apparent = _told_apart(self.effective_sparsity, self.sparsity)
            said.append(
                f"{idle:,} of {kept:,} kept weights ({idle / kept:.1%}) lie on no path from input to output: the "
                f"effective sparsity is {true}, not {apparent}."
            )
        dead = [layer for layer in self.layers if layer.live_channels < layer.channels]
        if dead:
            worst = min(dead, key=lambda layer: layer.live_channels / layer.channels)
            gone = self.units[1] - self.units[0]
            said.append(
                f"{gone:,} of {self.units[1]:,} output channels {'is' if gone == 1 else 'are'} dead; the narrowest "
                f"layer is {worst.name} with {worst.live_channels} of {worst.channels} left."
            )
        if isinstance(self.log10_paths, str):
            said.append(f"Paths from input to output are not counted: {self.log10_paths}.")
        elif self.log10_paths > -math.inf:
            said.append(
                f"10^{self.log10_paths:.1f} paths lead from input to output, through {self.units[0]:,} of "
                f"{self.units[1]:,} channels and {self.kernels[0]:,} of {self.kernels[1]:,} kernels."
            )
        elif not self.disconnected:
            said.append(
                "No path is counted, since none comes from the input alone. (In attention, a query, a key and a value "
                "must all do so; the query of a class token, which is a parameter, does not.)"
            )
        said.append(
            f"One inference costs {self.inference_flops:,} of {self.dense_flops:,} multiply-adds "
            f"({self.inference_flops / self.dense_flops:.1%}), if zeros are actually skipped."
        )
        if self.uncounted:
            said.append(
                f"That leaves out {', '.join(self.uncounted)}: either never used for this input, or used by a module "
                "whose arithmetic is not known."
            )
        if isinstance(self.kernel, KernelChange):
            said += self.kernel.sentences()
        elif self.kernel is not None:
            said.append(f"The neural tangent kernel is not compared with the dense network's: {self.kernel}.")
        return said


def diagnose(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
    kernel: bool = False,
    seed: int = 0,
) -> Diagnosis:
    """Look at masks before training: densities, collapsed layers, unused weights, dead channels, paths, cost.

    ``input_shape``, ``inputs`` and ``output`` are those of `prune`. With ``kernel``, also say how the neural tangent
    kernel differs from the dense net's at the present weights, on noise that ``seed`` decides; see `kernel_change`.
    That takes seconds.

    >>> import torch
    >>> layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> masks = {"0.weight": torch.tensor([[True, True], [True, False]]), "2.weight": torch.tensor([[True, False]])}
    >>> diagnose(layers, masks, input_shape=(2,)).effective_sparsity == 0.5
    True
    """
    used = effective_masks(model, masks, input_shape=input_shape, inputs=inputs, output=output)
    flops = cost(model, masks, input_shape=input_shape, inputs=inputs)
    modules = dict(unwrap(model).named_modules(remove_duplicate=False))
    layers = []
    for name, mask in without_followers(masks).items():
        layer = modules[name.rpartition(".")[0]]
        used_rows = by_output(layer, used[name])
        pairs = used[name].flatten(2).any(2) if isinstance(layer, _ConvNd) else used[name]
        layers.append(
            LayerDiagnosis(
                name=name,
                shape=tuple(mask.shape),
                kept=int(mask.sum()),
                used=int(used[name].sum()),
                total=mask.numel(),
                channels=len(used_rows),
                live_channels=int(used_rows.any(1).sum()),
                kernels=pairs.numel(),
                live_kernels=int(pairs.sum()),
            )
        )
    change: KernelChange | str | None = None
    if kernel:
        try:
            change = kernel_change(model, masks, input_shape=input_shape, inputs=inputs, output=output, seed=seed)
        except InputError as error:
            change = str(error)
    try:
        paths: float | str = log10_paths(model, masks, input_shape=input_shape, inputs=inputs, output=output)
    except InputError as error:
        paths = str(error)
    return Diagnosis(tuple(layers), flops.dense, flops.sparse, paths, flops.uncounted, change)


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Return two shares in per cent, with as many digits as it takes to tell them apart, at least two.

    >>> _told_apart(0.991, 0.99), _told_apart(0.990018, 0.99)
    (('99.10%', '99.00%'), ('99.002%', '99.000%'))
    """
    for digits in range(2, 14):
        shown = f"{one:.{digits}%}", f"{other:.{digits}%}"
        if shown[0] != shown[1]:
            break
    return shown
