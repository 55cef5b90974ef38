"""Spectra as values: that of a kernel, and how far apart two are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ntksap._base import InputError


@dataclass(frozen=True, eq=False)
class Kernel:
    """An empirical NTK over n inputs and k outputs each.

    Args:
        matrix: Θ (n·k × n·k), float64, symmetric; row i·k + c is output c of input i.
        num_inputs: n.
        rounding: how large rounding may make an eigenvalue that is 0, relative to the largest one.
    """

    matrix: Tensor
    num_inputs: int
    rounding: float = 0.0

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def num_outputs(self) -> int:
        """Outputs for each input (k)."""
        return len(self) // self.num_inputs

    @cached_property
    def eigenvalues(self) -> Tensor:
        """All eigenvalues, descending, float64."""
        values: Tensor = torch.linalg.eigvalsh(self.matrix)
        return values.flip(0)

    @property
    def trace(self) -> float:
        """The sum of the eigenvalues; also the nuclear norm, since none is negative."""
        return float(self.matrix.trace())

    @property
    def floor(self) -> float:
        """What an eigenvalue must exceed to differ from zero: `rounding`, or n·k·ε for their own computation."""
        relative = max(self.rounding, len(self) * torch.finfo(torch.float64).eps)
        return relative * max(float(self.eigenvalues[0]), 0.0)

    @property
    def rank(self) -> int:
        """How many eigenvalues differ from zero."""
        return int((self.eigenvalues > self.floor).sum())

    @property
    def condition_number(self) -> float:
        """Largest eigenvalue ÷ smallest; infinite where the kernel is singular."""
        return float(self.eigenvalues[0] / self.eigenvalues[-1]) if self.rank == len(self) else math.inf

    @property
    def relative_eigenvalues(self) -> Tensor:
        """Each eigenvalue ÷ the mean of the smallest 10 % (at least one), as in the paper.

        Where that mean is numerically zero, `floor` takes its place: the numbers are large, but finite.
        """
        smallest = self.eigenvalues[-max(1, len(self) // 10) :].mean()
        return self.eigenvalues / max(float(smallest), self.floor, torch.finfo(torch.float64).tiny)


def spectrum_distance(
    eigenvalues: Tensor | Sequence[float],
    reference: Tensor | Sequence[float],
    *,
    match_trace: bool = False,
    floor: float = 1e-6,
) -> float:
    """Return how far a spectrum lies from a reference, in decades: the typical factor between equal ranks.

        D = sqrt( mean_r ( log10 max(λ_r, φ) − log10 max(μ_r, φ) )² ),   λ, μ descending, φ = floor · max μ

    Logarithms, because eigenvalues span decades and each direction learns at a rate proportional to its own: a
    difference of values would only see the few largest. A floor, because logarithms of rounding errors would outweigh
    everything else; at the largest stable learning rate, a direction below 1e-6 of the top does not learn at all, and
    how far below does not matter. So D is 0 for equal spectra, 1 where all differ by a factor of 10, and finite for a
    collapsed net (all zero).

    Args:
        eigenvalues, reference: the same number of each, in any order; the dense net's as the reference.
        match_trace: divide each spectrum by its mean first, which leaves the shape: the learning rate can make up for a
            common factor.
        floor: see above.

    >>> spectrum_distance([100.0, 10.0, 0.0], [1000.0, 100.0, 0.0], floor=1e-3)
    0.816496580927726
    """
    found, wanted = (
        torch.as_tensor(e, dtype=torch.float64).cpu().sort(descending=True)[0] for e in (eigenvalues, reference)
    )
    if found.shape != wanted.shape or not len(wanted):
        raise InputError(f"spectra of {len(found)} and {len(wanted)} eigenvalues cannot be compared rank by rank")
    if not wanted[0] > 0:
        raise InputError("the reference spectrum has no eigenvalue above 0")
    if match_trace:
        found, wanted = (e / e.mean() if e.mean() > 0 else e for e in (found, wanted))
    lowest = floor * float(wanted[0])
    return float((found.clamp_min(lowest).log10() - wanted.clamp_min(lowest).log10()).square().mean().sqrt())
