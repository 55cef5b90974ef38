"""The empirical neural tangent kernel Θ = J diag(m) Jᵀ of any module."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.analysis.jacobian import Jacobian
from ntksap.analysis.spectrum import Kernel
from ntksap.net import Inputs, Norm, Selectors

_GRAM_COLUMNS = 4096
"""Columns of J that are multiplied at a time; the products are added up in float64."""

_IN_FLOAT64 = 2 * 10**10
"""Multiply-adds of J Jᵀ up to which they are done in float64, about a second; more of them in the dtype of J."""


def ntk(
    model: nn.Module,
    inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    norm: Norm = "running",
    output: Callable[[Any], Tensor] | None = None,
    include: Selectors = None,
    exclude: Selectors = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    memory_mib: float = 384,
    on_progress: Callable[[int, int], object] | None = None,
) -> Kernel:
    """Return the empirical NTK of ``model`` under ``masks``: Θ = J diag(m) Jᵀ, J = ∂f(inputs; w)/∂w at w = θ⊙m.

    Exact for any module. J is made some columns at a time and its products are added up in float64, so that memory
    holds Θ, the derivatives of some inputs and ``memory_mib`` of J. Time grows with n·k·(passes), where passes = size
    of J ÷ ``memory_mib``, and with (n·k)²·(columns of J); a sparse net has few columns and needs one pass. J is
    multiplied in float64 up to (n·k)²·(columns) = 2e10, beyond that in its own dtype. In float32 that moves eigenvalues
    by about 1e-9 of the largest; `Kernel.floor` takes that into account.

    Args:
        model: any ``nn.Module``; it is not changed.
        inputs: what it is called with: a tensor, or a tuple or dict of arguments.
        masks: {name: bool mask}; a prunable weight without a mask is kept in full.
        norm, output, include, exclude, dtype, device: see `Jacobian`.
        memory_mib: how much of J to hold at a time. It does not change the result beyond rounding.
        on_progress: called with (done, total) after each step.

    Where even Θ is too large, `Jacobian.gram_operator` gives its largest eigenvalues and its trace.

    >>> kernel = ntk(nn.Linear(2, 1), torch.tensor([[3.0, 4.0], [1.0, 0.0]]))   # x·x' for each pair of inputs
    >>> kernel.matrix
    tensor([[25.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    >>> ntk(nn.Linear(2, 1), torch.tensor([[3.0, 4.0]]), {"weight": torch.tensor([[True, False]])}).trace
    9.0
    """
    if memory_mib <= 0:
        raise InputError(f"memory_mib must be above 0, not {memory_mib}")
    jacobian = Jacobian(
        model,
        inputs,
        masks,
        norm=norm,
        output=output,
        include=include,
        exclude=exclude,
        dtype=dtype,
        device=device,
    )
    passes = jacobian.passes()
    width = max(1, int(memory_mib * 2**20) // (jacobian.rows * jacobian.net.dtype.itemsize))
    columns = sum(int(mask.sum()) for mask in jacobian.masks.values())
    blocks = math.ceil(columns / width)
    done, total = 0, blocks * (jacobian.num_inputs if passes.taps else len(passes.groups))

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
            matrix, jacobian.columns(pieces, passes, buffer, step), torch.float64 if precise else jacobian.net.dtype
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
            with np.errstate(all="ignore"):  # the caller checks the sum
                matrix += torch.from_numpy(array @ array.T)  # numpy computes one half of such a product, torch both
        else:
            matrix += wide @ wide.T
