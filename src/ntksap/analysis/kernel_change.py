"""How pruning changes the neural tangent kernel at the present weights, in numbers and in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.analysis.multiply_adds import cost
from ntksap.analysis.spectrum import Kernel, spectrum_distance
from ntksap.analysis.tangent_kernel import ntk
from ntksap.net import Net, first_tensor
from ntksap.pruning import MakeInputs, Probe, without_followers

_INPUTS = (10, 5, 3)
"""The numbers of noise inputs to try, until the work is within the limit."""
_OUTPUTS = 10
"""The most outputs that are looked at; if there are more, such as 1,000 classes, these are evenly spaced."""
_MEMORY_MIB = 512
_MOST_WORK = 5e11
"""Multiply-adds: tens of seconds on one core."""


@dataclass(frozen=True, eq=False)
class KernelChange:
    """The kernels of the dense and of the pruned net on the same inputs, at the same initial weights."""

    dense: Kernel
    pruned: Kernel

    @cached_property
    def distance(self) -> float:
        """See `spectrum_distance`: the typical factor between eigenvalues of equal rank, in decades."""
        return spectrum_distance(self.pruned.eigenvalues, self.dense.eigenvalues)

    @cached_property
    def shape_distance(self) -> float:
        """The same after both spectra are divided by their mean: what no learning rate can make up for."""
        return spectrum_distance(self.pruned.eigenvalues, self.dense.eigenvalues, match_trace=True)

    @property
    def typical_factor(self) -> float:
        """The median over ranks of the pruned net's eigenvalue ÷ the dense one's; 0 where most are zero."""
        pruned, dense = (kernel.eigenvalues.where(kernel.eigenvalues > kernel.floor, 0.0) for kernel in self._both)
        return float((pruned / dense)[dense > 0].median())

    @property
    def slowest_factor(self) -> float:
        """The smallest tenth of eigenvalues, relative to the largest eigenvalue: pruned ÷ dense; 0 where singular."""
        pruned, dense = (_slowest(kernel) for kernel in self._both)
        return pruned / dense if dense > 0 else math.nan

    @property
    def _both(self) -> tuple[Kernel, Kernel]:
        return self.pruned, self.dense

    def sentences(self) -> list[str]:
        """Say it in words. They hold for gradient descent while the kernel changes little, that is, early on."""
        where = f"{self.dense.num_inputs} noise inputs × {self.dense.num_outputs} outputs, at the initial weights"
        if self.pruned.trace == 0:
            return [f"The kernel of the pruned network ({where}) is zero: no gradient reaches a kept weight."]
        said = []
        lost = self.dense.rank - self.pruned.rank
        if self.typical_factor > 0:
            said.append(
                f"The neural tangent kernel ({where}): its eigenvalues are typically "
                f"{_times(self.typical_factor, 'larger', 'smaller')} the dense network's of equal rank. Early in "
                "training the error along an eigenvector shrinks at a rate proportional to the eigenvalue: at the same "
                f"learning rate the pruned network typically begins to learn "
                f"{_times(self.typical_factor, 'faster', 'slower')} the dense one."
            )
        if lost > 0:
            said.append(
                f"{lost} of the neural tangent kernel's {len(self.dense)} eigenvalues ({where}) have become zero: in "
                "that many directions nothing is learnt at first."
            )
        elif math.isfinite(self.slowest_factor):
            said.append(
                "A learning rate can make up for a common factor, not for a change of shape. Measured against the "
                f"largest eigenvalue, the smallest tenth is {_times(self.slowest_factor, 'larger', 'smaller')} the "
                "dense network's: at the largest stable learning rate of gradient descent in each, the slowest "
                f"directions learn {_times(self.slowest_factor, 'faster', 'slower')} the dense network's."
            )
        said.append(
            f"Distance of the two spectra: {self.distance:.2f} decades, {self.shape_distance:.2f} with equal means "
            "(0: equal; 1: a typical factor of 10). It says how training begins, not how it ends."
        )
        return said


def kernel_change(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
    seed: int = 0,
) -> KernelChange:
    """Return the exact kernels of ``model`` at its present weights, dense and under ``masks``, on the same noise.

    They are computed on 10 inputs, or 5 or 3 where the work would be too much, and at most 10 outputs of each; the
    statistics of BatchNorm are those of these inputs in each net. ``output`` is that of `Net`. Raises InputError where
    even 3 inputs are too much.

    >>> layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 1, bias=False))
    >>> all_kept = {"0.weight": torch.ones(16, 8, dtype=torch.bool), "2.weight": torch.ones(1, 16, dtype=torch.bool)}
    >>> kernel_change(layers, all_kept, input_shape=(8,)).distance
    0.0
    """
    masks = without_followers(masks)
    net = Net(model, include=tuple(masks), output=output)
    probe = Probe.of(net, seed=seed, input_shape=input_shape, inputs=inputs)
    with torch.no_grad():
        outputs = net(net.weights, probe.noise(0, 2))[0].numel()
    count = _affordable(net, cost(model, input_shape=input_shape, inputs=inputs).dense, min(outputs, _OUTPUTS))
    settings: dict[str, Any] = {
        "norm": "batch",
        "memory_mib": _MEMORY_MIB,
        "output": _some_outputs(output or first_tensor, outputs),
        "include": tuple(masks),
    }
    noise = probe.noise(0, count)
    change = KernelChange(ntk(model, noise, **settings), ntk(model, noise, masks, **settings))
    if not change.dense.trace > 0:
        raise InputError("the dense network's kernel is zero")
    return change


def _affordable(net: Net, flops: int, outputs: int) -> int:
    """Return how many inputs the dense kernel can be computed on: a reverse pass per row and part of the Jacobian."""
    weights = sum(net.weights[name].numel() for name in net.prunable)
    for count in _INPUTS:
        rows = count * outputs
        passes = math.ceil(rows * weights * net.dtype.itemsize / (_MEMORY_MIB * 2**20))
        work = 3 * flops * rows * passes
        if work <= _MOST_WORK:
            return count
    raise InputError(f"on {_INPUTS[-1]} inputs it takes {work:.1e} multiply-adds, beyond the limit of {_MOST_WORK:.0e}")


def _some_outputs(output: Callable[[Any], Tensor], outputs: int) -> Callable[[Any], Tensor]:
    chosen = torch.linspace(0, outputs - 1, min(outputs, _OUTPUTS), dtype=torch.float64, device="cpu").round().long()

    def select(result: Any) -> Tensor:
        tensor = output(result)
        return tensor.reshape(-1, outputs)[:, chosen.to(tensor.device)]

    return select


def _slowest(kernel: Kernel) -> float:
    values = kernel.eigenvalues
    smallest = float(values[-max(1, len(values) // 10) :].mean())
    return smallest / float(values[0]) if kernel.rank == len(kernel) else 0.0


def _times(factor: float, more: str, less: str) -> str:
    """Return a factor in words: "3.1 times smaller than", "as large as"."""
    if 0.95 < factor < 1.05:
        return {"larger": "about as large as", "faster": "about as fast as"}[more]
    size = max(factor, 1 / factor)
    return f"{f'{size:,.0f}' if size >= 10 else f'{size:.1f}'} times {more if factor > 1 else less} than"
