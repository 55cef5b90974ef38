"""Estimates of the trace converge to the trace of the exact kernel."""

import statistics

import pytest
import torch

import ntksap
from ntksap.analysis.tangent_kernel import ntk, trace_finite_difference, trace_hutchinson
from tests.analysis.kernels import setting

CASES = ["conv-bn", "residual", "attention", "tied", "tokens"]


@pytest.mark.parametrize("norm", ["running", "batch"])
@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
@pytest.mark.parametrize("case", CASES)
def test_hutchinson_is_within_its_standard_error_of_the_trace(case, distribution, norm):
    module, inputs, masks = setting(case)
    exact = ntk(module, inputs, masks, norm=norm).trace
    estimate = trace_hutchinson(module, inputs, masks, distribution=distribution, norm=norm)
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    assert 0 < estimate.standard_error < 0.25 * exact


@pytest.mark.parametrize("case", CASES)
def test_the_finite_difference_is_within_its_standard_error_of_the_trace(case):
    module, inputs, masks = setting(case)
    exact = ntk(module, inputs, masks).trace
    estimate = trace_finite_difference(module, inputs, masks, epsilon=1e-10)
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    assert 0 < estimate.standard_error < 0.25 * exact


@pytest.mark.parametrize("estimator", [trace_hutchinson, trace_finite_difference])
def test_more_probes_err_less_as_the_standard_error_says(estimator):
    module, inputs, masks = setting("no-bias")
    exact = ntk(module, inputs, masks).trace
    options = {"epsilon": 1e-10} if estimator is trace_finite_difference else {}

    def root_mean_square_error(probes: int) -> tuple[float, float]:
        estimates = [estimator(module, inputs, masks, probes=probes, seed=seed, **options) for seed in range(20)]
        errors = [(estimate.value - exact) ** 2 for estimate in estimates]
        return statistics.mean(errors) ** 0.5, statistics.mean(e.standard_error for e in estimates)

    (few, few_said), (many, many_said) = root_mean_square_error(5), root_mean_square_error(80)
    assert 2 < few / many < 8  # 4 expected: the square root of 16
    assert few_said == pytest.approx(few, rel=0.5)
    assert many_said == pytest.approx(many, rel=0.5)


def test_the_bias_of_the_finite_difference_falls_with_epsilon():
    module, inputs, masks = setting("tokens")  # smooth
    exact = trace_finite_difference(module, inputs, masks, probes=30, epsilon=1e-12).value
    wide, narrow = (
        abs(trace_finite_difference(module, inputs, masks, probes=30, epsilon=epsilon).value - exact)
        for epsilon in (1e-2, 1e-6)
    )
    assert narrow < 0.1 * wide


@pytest.mark.parametrize("estimator", [trace_hutchinson, trace_finite_difference])
def test_the_seed_decides_and_global_randomness_does_not(estimator):
    module, inputs, masks = setting("no-bias")
    torch.manual_seed(1)
    first = estimator(module, inputs, masks, probes=3, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert estimator(module, inputs, masks, probes=3, seed=5) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert estimator(module, inputs, masks, probes=3, seed=6) != first


def test_bad_arguments():
    module, inputs, masks = setting("no-bias")
    with pytest.raises(ntksap.InputError, match="at least 2"):
        trace_hutchinson(module, inputs, masks, probes=1)
    with pytest.raises(ntksap.InputError, match="'rademacher' or 'gaussian'"):
        trace_hutchinson(module, inputs, masks, distribution="uniform")
    with pytest.raises(ntksap.InputError, match="epsilon"):
        trace_finite_difference(module, inputs, masks, epsilon=0)
