"""Spectra from products with vectors, against whole matrices."""

import math

import pytest
import torch

import ntksap
from ntksap._base.seeds import generator_of
from ntksap.analysis.lanczos import lanczos, spectral_density, top_eigenvalues
from ntksap.analysis.tangent_kernel import ntk
from tests.analysis.kernels import setting


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def symmetric(values: torch.Tensor) -> torch.Tensor:
    """A matrix with these eigenvalues."""
    rotation = torch.linalg.qr(random(len(values), len(values)))[0]
    return rotation @ values.diag() @ rotation.T


def test_all_steps_give_all_eigenvalues():
    matrix = symmetric(torch.logspace(-6, 3, 40, dtype=torch.float64))
    *_, last = lanczos(lambda v: matrix @ v, random(40), steps=100)
    expected = torch.linalg.eigvalsh(matrix).flip(0)
    torch.testing.assert_close(last.values, expected, rtol=1e-6, atol=1e-12)
    assert last.residuals.max() < 1e-10


@pytest.mark.parametrize("values", [[1.0] * 6, [5.0] * 3 + [2.0] * 2 + [0.0] * 4, [0.0] * 5])
def test_eigenvalues_that_occur_several_times_are_found_as_often(values):
    matrix = symmetric(torch.tensor(values, dtype=torch.float64))
    *_, last = lanczos(lambda v: matrix @ v, random(len(values)), steps=len(values))
    assert last.values.tolist() == pytest.approx(sorted(values, reverse=True), abs=1e-12)


def test_each_value_is_within_its_residual_of_an_eigenvalue():
    matrix = symmetric(torch.logspace(-2, 2, 30, dtype=torch.float64))
    eigenvalues = torch.linalg.eigvalsh(matrix)
    for step, ritz in enumerate(lanczos(lambda v: matrix @ v, random(30), steps=12), start=1):
        distance = (ritz.values[:, None] - eigenvalues).abs().min(dim=1).values
        assert len(ritz.values) == step
        assert (distance <= ritz.residuals + 1e-10).all()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_weights_are_a_quadrature_that_is_exact_up_to_its_degree(steps):
    matrix, start = symmetric(torch.linspace(0.5, 3, 10, dtype=torch.float64)), random(10)
    *_, ritz = lanczos(lambda v: matrix @ v, start, steps)
    for power in range(2 * steps + 1):
        expected = start @ torch.linalg.matrix_power(matrix, power) @ start / (start @ start)
        exact = float(ritz.weights @ ritz.values**power) == pytest.approx(float(expected), rel=1e-9)
        assert exact == (power < 2 * steps)


@pytest.mark.parametrize("case", ["conv-bn", "residual", "attention", "tokens"])
def test_top_eigenvalues_are_those_of_the_kernel(case):
    module, inputs, masks = setting(case)
    exact = ntk(module, inputs, masks, norm="batch").eigenvalues
    found = top_eigenvalues(module, inputs, masks, count=4, tolerance=1e-9, norm="batch")
    torch.testing.assert_close(found, exact[:4], rtol=1e-7, atol=1e-9 * float(exact[0]))
    rough = top_eigenvalues(module, inputs, masks, count=4, tolerance=1e-4, norm="batch", dtype=torch.float32)
    assert (rough - exact[:4]).abs().max() <= 1e-4 * exact[0]


def test_top_eigenvalues_says_when_they_are_not_settled():
    module, inputs, masks = setting("conv-bn")
    with pytest.raises(ntksap.InputError, match="2 steps do not settle 2"):
        top_eigenvalues(module, inputs, masks, count=2, tolerance=1e-9, steps=2)
    with pytest.raises(ntksap.InputError, match="from 1 to 12"):
        top_eigenvalues(module, inputs, masks, count=13)


@pytest.mark.parametrize("case", ["conv-bn", "attention", "tied"])
def test_the_moments_of_the_density_are_those_of_its_probes_and_near_those_of_the_kernel(case):
    module, inputs, masks = setting(case)
    matrix = ntk(module, inputs, masks).matrix
    density = spectral_density(module, inputs, masks, steps=4, probes=60, seed=1)
    starts = torch.stack(
        [torch.randn(12, generator=generator_of(1, "density", i), dtype=torch.float64).sign() for i in range(60)]
    )
    assert density.moment(0) == pytest.approx(12)
    for power in range(1, 5):
        raised = torch.linalg.matrix_power(matrix, power)
        samples = ((starts @ raised) * starts).sum(1)
        assert density.moment(power) == pytest.approx(float(samples.mean()), rel=1e-6)
        error = float(samples.std()) / math.sqrt(60)
        assert abs(density.moment(power) - float(raised.trace())) < 4 * error


def test_the_density_integrates_to_the_number_of_eigenvalues_and_stands_where_they_are():
    module, inputs, masks = setting("no-bias")
    exact = ntk(module, inputs, masks).eigenvalues
    density = spectral_density(module, inputs, masks, steps=12, probes=100)
    decades = torch.linspace(-14, 6, 4001, dtype=torch.float64)
    curve = density.per_decade(10**decades, width=0.05)
    assert float(torch.trapezoid(curve, decades)) == pytest.approx(12, rel=1e-6)
    above = decades >= exact[5].log10()
    counted = torch.trapezoid(curve[above], decades[above])  # five and a half, with a sharp edge in between
    assert 4.5 < counted < 6.5
    torch.testing.assert_close(density.eigenvalues(), exact, rtol=0.25, atol=0)
    assert len(density.eigenvalues()) == 12


def test_the_seed_of_the_density_decides():
    module, inputs, masks = setting("no-bias")
    one, same, other = (spectral_density(module, inputs, masks, steps=3, probes=2, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.values, same.values)
    assert not torch.equal(one.values, other.values)
    with pytest.raises(ntksap.InputError, match="at least 1"):
        spectral_density(module, inputs, masks, probes=0)
