"""The Lanczos method: the spectrum of a matrix, and of a kernel, that is known by its products with vectors only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import InputError, generator_of
from ntksap.analysis.jacobian import Jacobian
from ntksap.analysis.spectrum import Density
from ntksap.net import Inputs


@dataclass(frozen=True, eq=False)
class Ritz:
    """What some steps of Lanczos tell about a matrix A. All tensors are float64, (steps,).

    Args:
        values: approximate eigenvalues, descending; the outer ones settle first.
        residuals: an eigenvalue of A lies within ``residuals[i]`` of ``values[i]``.
        weights: the share of the start vector v along each one, summing to 1, so that
            Σ weights·g(values) ≈ vᵀ g(A) v / vᵀv, exactly for polynomials g up to degree 2·steps − 1.
    """

    values: Tensor
    residuals: Tensor
    weights: Tensor


def lanczos(product: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Iterator[Ritz]:
    """Yield what is known after 1, 2, … steps, one product each, until ``steps`` or the size of the matrix.

    Each new direction is made orthogonal to all earlier ones (twice, which is enough), so that no eigenvalue is
    found again by rounding. Where the directions that the start vector reaches are exhausted, a fresh random one is
    taken: all steps together give all eigenvalues.

    Args:
        product: vector (size,) → A vector (size,), in float64; A is symmetric.
        start: the first direction (size,), float64, not zero.
        steps: the most products to make. ``steps`` vectors are held.

    >>> matrix = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    >>> *_, last = lanczos(lambda v: matrix @ v, torch.ones(3, dtype=torch.float64), steps=3)
    >>> [round(value, 6) for value in last.values.tolist()]
    [4.0, 2.0, 1.0]
    """
    size = len(start)
    steps = min(steps, size)
    basis = start.new_zeros(steps, size)
    diagonal: list[float] = []
    beside: list[float] = []
    direction = start / start.norm()
    for step in range(steps):
        basis[step] = direction
        image = product(direction)
        diagonal.append(float(direction @ image))
        rest = _orthogonal(image, basis[: step + 1])
        length = float(rest.norm())
        yield _ritz(diagonal, beside, length)
        if step + 1 == steps:
            return
        if length <= size * torch.finfo(torch.float64).eps * float(image.norm()):
            fresh = torch.randn(size, generator=generator_of("lanczos", step), dtype=torch.float64).to(start)
            rest = _orthogonal(fresh, basis[: step + 1])
            length = 0.0
        beside.append(length)
        direction = rest / rest.norm()


def top_eigenvalues(
    model: nn.Module,
    inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    count: int = 10,
    tolerance: float = 1e-4,
    steps: int = 200,
    seed: int = 0,
    **settings: Any,
) -> Tensor:
    """Return the ``count`` largest eigenvalues of Θ, descending, float64, by Lanczos from a random start.

    It ends when each lies within ``tolerance`` times the largest of an eigenvalue, or raises after ``steps`` products
    (one reverse and one forward-mode pass each). Limits: of an eigenvalue that occurs several times, exactly, one may
    be found; and eigenvalues nearer to each other than the tolerance may count as one.
    ``settings`` are the keywords of `ntksap.ntk.Jacobian`.

    >>> round(float(top_eigenvalues(nn.Linear(2, 1), torch.tensor([[3.0, 0.0], [0.0, 1.0]]), count=1)), 3)
    9.0
    """
    jacobian = Jacobian(model, inputs, masks, **settings)
    if not 1 <= count <= jacobian.rows:
        raise InputError(f"count must be from 1 to {jacobian.rows}, the size of the kernel, not {count}")
    start = torch.randn(jacobian.rows, generator=generator_of(seed, "lanczos"), dtype=torch.float64)
    for ritz in lanczos(_product(jacobian), start.to(jacobian.net.device), steps):
        known = ritz.residuals[:count] <= tolerance * ritz.values[0]
        if len(ritz.values) == jacobian.rows or (len(known) == count and known.all()):
            return ritz.values[:count]
    raise InputError(f"{steps} steps do not settle {count} eigenvalues to {tolerance:g}: raise steps= or tolerance=")


def spectral_density(
    model: nn.Module,
    inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    steps: int = 50,
    probes: int = 10,
    seed: int = 0,
    **settings: Any,
) -> Density:
    """Return the spectral density of Θ by stochastic Lanczos quadrature: ``probes`` starts of ``steps`` products.

    A start v gives nodes λ and weights τ with Σ τ·g(λ) ≈ vᵀg(Θ)v; the mean over v ∈ {±1}^(n·k) is tr g(Θ), so that
    moments are unbiased, up to the power 2·steps − 1. ``settings`` are the keywords of `ntksap.ntk.Jacobian`.
    """
    if steps < 1 or probes < 1:
        raise InputError("steps and probes must be at least 1")
    jacobian = Jacobian(model, inputs, masks, **settings)
    values, weights = [], []
    for index in range(probes):
        generator = generator_of(seed, "density", index)
        start = torch.randn(jacobian.rows, generator=generator, dtype=torch.float64).sign()
        *_, ritz = lanczos(_product(jacobian), start.to(jacobian.net.device), steps)
        values.append(ritz.values)
        weights.append(ritz.weights * (jacobian.rows / probes))
    nodes, order = torch.cat(values).sort(descending=True)
    return Density(nodes, torch.cat(weights)[order], jacobian.rows)


def _orthogonal(vector: Tensor, basis: Tensor) -> Tensor:
    for _ in range(2):
        vector = vector - basis.T @ (basis @ vector)
    return vector


def _ritz(diagonal: list[float], beside: list[float], length: float) -> Ritz:
    main, side = (torch.tensor(entries, dtype=torch.float64) for entries in (diagonal, beside))
    values, vectors = torch.linalg.eigh(main.diag() + side.diag(1) + side.diag(-1))
    first, last = vectors[0].flip(0), vectors[-1].flip(0)
    return Ritz(values.flip(0), length * last.abs(), first.square())


def _product(jacobian: Jacobian) -> Callable[[Tensor], Tensor]:
    return lambda vector: jacobian.gram_times(vector).double()
