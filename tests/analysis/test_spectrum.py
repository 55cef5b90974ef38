"""What a kernel tells about itself, against numpy and by hand."""

import math

import numpy as np
import pytest
import torch

from ntksap.analysis.spectrum import Kernel
from ntksap.analysis.tangent_kernel import ntk
from tests.analysis.kernels import setting


def diagonal(*values: float, num_inputs: int = 1, rounding: float = 0.0) -> Kernel:
    return Kernel(torch.diag(torch.tensor(values, dtype=torch.float64)), num_inputs, rounding)


@pytest.mark.parametrize("case", ["conv-bn", "attention", "no-bias"])
def test_eigenvalues_trace_and_condition_number_are_numpys(case):
    kernel = ntk(*setting(case))
    expected = np.linalg.eigvalsh(kernel.matrix.numpy())[::-1]
    np.testing.assert_allclose(kernel.eigenvalues, expected, rtol=1e-8, atol=1e-12 * expected[0])
    assert kernel.trace == pytest.approx(expected.sum())
    assert kernel.trace == pytest.approx(np.linalg.norm(kernel.matrix.numpy(), "nuc"))
    assert kernel.rank == np.linalg.matrix_rank(kernel.matrix.numpy(), hermitian=True)
    if kernel.rank == len(kernel):
        assert kernel.condition_number == pytest.approx(np.linalg.cond(kernel.matrix.numpy()), rel=1e-6)


def test_some_of_these_kernels_are_regular():
    assert math.isfinite(ntk(*setting("conv-bn")).condition_number)


@pytest.mark.parametrize(("size", "smallest"), [(5, 1), (10, 1), (19, 1), (20, 2), (100, 10)])
def test_relative_eigenvalues_are_by_the_mean_of_the_smallest_tenth_but_of_one_at_least(size, smallest):
    values = torch.arange(1, size + 1, dtype=torch.float64)
    kernel = diagonal(*values.tolist())
    torch.testing.assert_close(kernel.relative_eigenvalues, values.flip(0) / values[:smallest].mean())


def test_a_singular_kernel_has_an_infinite_condition_number_and_finite_relative_eigenvalues():
    kernel = diagonal(1.0, 4.0, 1e-17, num_inputs=3)
    assert (kernel.rank, kernel.condition_number, kernel.num_outputs) == (2, math.inf, 1)
    assert kernel.relative_eigenvalues.isfinite().all()
    assert kernel.relative_eigenvalues[0] > 1e12
    zero = diagonal(0.0, 0.0)
    assert (zero.rank, zero.trace, zero.condition_number) == (0, 0.0, math.inf)
    assert zero.relative_eigenvalues.tolist() == [0.0, 0.0]


def test_what_counts_as_zero_depends_on_rounding():
    assert diagonal(1.0, 1e-15).rank == 2
    assert diagonal(1.0, 1e-15, rounding=1e-13).rank == 1
    assert diagonal(1.0, 1e-12, rounding=1e-13).rank == 2
