"""The empirical neural tangent kernel Θ = J diag(m) Jᵀ of any module: whole, times a vector, and its trace."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ntksap._base import InputError, generator_of
from ntksap.analysis.jacobian import Jacobian
from ntksap.analysis.spectrum import Kernel
from ntksap.net import Inputs

_GRAM_COLUMNS = 4096
"""Columns of J that are multiplied at a time; the products are added up in float64."""

_IN_FLOAT64 = 2 * 10**10
"""Multiply-adds of J Jᵀ up to which they are done in float64, about a second; more of them in the dtype of J."""


class Estimate(NamedTuple):
    """A mean over independent probes, and its standard error."""

    value: float
    standard_error: float


def ntk(
    model: nn.Module,
    inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    memory_mib: float = 384,
    on_progress: Callable[[int, int], object] | None = None,
    **settings: Any,
) -> Kernel:
    """Return the empirical NTK of ``model`` under ``masks``: Θ = J diag(m) Jᵀ, J = ∂f(inputs; w)/∂w at w = θ⊙m.

    Exact for any module. J is made some columns at a time and its products are added up in float64, so that memory
    holds Θ, the derivatives of some inputs and ``memory_mib`` of J. Time goes with n·k·(passes), where passes = size of
    J ÷ ``memory_mib``, and with (n·k)²·(columns of J); a sparse net has few columns and needs one pass. J is multiplied
    in float64 up to (n·k)²·(columns) = 2e10, beyond that in its own dtype. In float32 that moves eigenvalues
    by about 1e-9 of the largest; `Kernel.floor` counts it in.

    Args:
        model, inputs, masks: as in `Jacobian`; the model is not changed.
        memory_mib: how much of J to hold at a time. It does not change the result beyond rounding.
        on_progress: called with (done, total) after each step.
        settings: the keywords of `Jacobian`: norm, output, include, exclude, dtype, device.

    >>> kernel = ntk(nn.Linear(2, 1), torch.tensor([[3.0, 4.0], [1.0, 0.0]]))   # x·x' for each pair of inputs
    >>> kernel.matrix
    tensor([[25.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    >>> ntk(nn.Linear(2, 1), torch.tensor([[3.0, 4.0]]), {"weight": torch.tensor([[True, False]])}).trace
    9.0
    """
    if memory_mib <= 0:
        raise InputError(f"memory_mib must be above 0, not {memory_mib}")
    jacobian = Jacobian(model, inputs, masks, **settings)
    plan = jacobian.plan()
    width = max(1, int(memory_mib * 2**20) // (jacobian.rows * jacobian.net.dtype.itemsize))
    columns = sum(int(mask.sum()) for mask in jacobian.masks.values())
    passes = math.ceil(columns / width)
    done, total = 0, passes * (jacobian.num_inputs if plan.taps else len(plan.groups))

    def step() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    precise = jacobian.rows**2 * columns <= _IN_FLOAT64
    matrix = torch.zeros(jacobian.rows, jacobian.rows, dtype=torch.float64, device=jacobian.net.device)
    buffer = torch.empty(jacobian.rows, min(width, columns), dtype=jacobian.net.dtype, device=jacobian.net.device)
    for pieces in jacobian.pieces(width):
        _add_gram(
            matrix, jacobian.columns(pieces, plan, buffer, step), torch.float64 if precise else jacobian.net.dtype
        )
    if not matrix.isfinite().all():
        raise InputError(
            "the kernel has NaN or infinite entries: derivatives overflow. Try dtype=torch.float64, or norm='batch'"
        )
    eps = torch.finfo(jacobian.net.dtype).eps
    # An error δ in J, relative to its largest singular value, moves an eigenvalue from zero by δ²; one in J Jᵀ by δ.
    return Kernel((matrix + matrix.T) / 2, jacobian.num_inputs, jacobian.rows * eps**2 if precise else eps)


def _add_gram(matrix: Tensor, block: Tensor, dtype: torch.dtype) -> None:
    """Add block blockᵀ to ``matrix``, computed in ``dtype`` for some columns at a time."""
    for part in block.split(_GRAM_COLUMNS, dim=1):
        wide = part.to(dtype)
        if wide.device.type == "cpu":
            array = wide.numpy()
            with np.errstate(all="ignore"):  # whoever calls it looks at the sum
                matrix += torch.from_numpy(array @ array.T)  # numpy computes one half of such a product, torch both
        else:
            matrix += wide @ wide.T


def ntk_vector_product(
    model: nn.Module,
    inputs: Inputs,
    vector: Tensor,
    masks: Mapping[str, Tensor] | None = None,
    **settings: Any,
) -> Tensor:
    """Return Θ vector = J diag(m) (Jᵀ vector), (n·k,), by one reverse and one forward-mode pass, without forming Θ.

    For many products make a `Jacobian` once and call its `gram_times`.

    >>> ntk_vector_product(nn.Linear(2, 1), torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([1.0, 0.0]))
    tensor([25.,  3.])
    """
    return Jacobian(model, inputs, masks, **settings).gram_times(vector)


def trace_hutchinson(
    model: nn.Module,
    inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    probes: int = 100,
    distribution: Literal["rademacher", "gaussian"] = "rademacher",
    seed: int = 0,
    **settings: Any,
) -> Estimate:
    """Estimate tr Θ = E ‖m⊙(Jᵀv)‖² over random v (n·k,) with mean 0 and covariance I: one reverse pass per probe.

    Unbiased. Entries of v are ±1 (``"rademacher"``, the smaller variance) or standard normal (``"gaussian"``).
    ``settings`` are the keywords of `Jacobian`.

    >>> trace_hutchinson(nn.Linear(2, 1), torch.tensor([[3.0, 4.0]]), probes=2)
    Estimate(value=25.0, standard_error=0.0)
    """
    if distribution not in ("rademacher", "gaussian"):
        raise InputError(f"distribution is 'rademacher' or 'gaussian', not {distribution!r}")
    jacobian = Jacobian(model, inputs, masks, **settings)

    def sample(index: int) -> float:
        generator = generator_of(seed, "trace", index)
        vector = torch.randn(jacobian.rows, generator=generator, dtype=torch.float64)
        gradient = jacobian.transposed_times(vector.sign() if distribution == "rademacher" else vector)
        return sum(float(part.double().square().sum()) for part in gradient.values())

    return _mean(sample, probes)


def trace_finite_difference(
    model: nn.Module,
    inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    probes: int = 100,
    epsilon: float = 1e-4,
    seed: int = 0,
    **settings: Any,
) -> Estimate:
    """Estimate tr Θ ≈ (1/ε) E ‖f(w) − f(w + Δ⊙m)‖², Δ ~ N(0, ε), as the paper does: one forward pass per probe.

    ``epsilon`` is the variance of Δ. The bias is of order ε; below ε ≈ 1e-8 a float32 difference is mostly rounding.
    ``settings`` are the keywords of `Jacobian`; the BatchNorm statistics are those at w in both terms.

    >>> estimate = trace_finite_difference(nn.Linear(2, 1), torch.tensor([[3.0, 4.0]]), probes=1000)
    >>> abs(estimate.value - 25) < 4 * estimate.standard_error
    True
    """
    if epsilon <= 0:
        raise InputError(f"epsilon must be above 0, not {epsilon}")
    jacobian = Jacobian(model, inputs, masks, **settings)
    with torch.no_grad():
        here = jacobian.values(jacobian.weights)

    @torch.no_grad()
    def sample(index: int) -> float:
        generator = generator_of(seed, "difference", index)
        moved = dict(jacobian.weights)
        for name, mask in jacobian.masks.items():
            delta = torch.randn(mask.shape, generator=generator, dtype=torch.float32) * math.sqrt(epsilon)
            moved[name] = moved[name] + delta.to(moved[name]) * mask
        return float((jacobian.values(moved) - here).double().square().sum()) / epsilon

    return _mean(sample, probes)


def _mean(sample: Callable[[int], float], probes: int) -> Estimate:
    if probes < 2:
        raise InputError(f"probes must be at least 2 for a standard error, not {probes}")
    samples = torch.tensor([sample(index) for index in range(probes)], dtype=torch.float64)
    return Estimate(float(samples.mean()), float(samples.std()) / math.sqrt(probes))
