"""The kernel as a linear operator, against the kernel itself."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh

from ntksap.analysis.jacobian import Jacobian
from ntksap.analysis.tangent_kernel import ntk
from tests.analysis.kernels import setting


@pytest.mark.parametrize("norm", ["running", "batch"])
@pytest.mark.parametrize("case", ["conv-bn", "residual", "attention", "tied", "tokens"])
def test_products_and_largest_eigenvalues_are_those_of_the_kernel(case, norm):
    module, inputs, masks = setting(case)
    kernel = ntk(module, inputs, masks, norm=norm)
    operator = Jacobian(module, inputs, masks, norm=norm).gram_operator()
    matrix = kernel.matrix.numpy()
    np.testing.assert_allclose(operator @ np.eye(len(matrix)), matrix, rtol=1e-8, atol=1e-10)
    found = eigsh(operator, k=4, return_eigenvectors=False)[::-1]
    np.testing.assert_allclose(found, kernel.eigenvalues[:4], rtol=1e-7, atol=1e-9 * float(kernel.eigenvalues[0]))


def test_the_operator_of_a_float32_net_is_near_and_speaks_float64():
    module, inputs, masks = setting("residual")
    exact = ntk(module, inputs, masks).eigenvalues
    operator = Jacobian(module, inputs, masks, dtype=torch.float32).gram_operator()
    assert operator.dtype == np.float64
    assert eigsh(operator, k=1, return_eigenvectors=False)[0] == pytest.approx(float(exact[0]), rel=1e-4)
