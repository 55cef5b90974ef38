"""The distance between two spectra."""

import math

import pytest
import torch

import ntksap
from ntksap.analysis.spectrum import spectrum_distance

DENSE = torch.logspace(3, 0, 50, dtype=torch.float64)


def noise() -> torch.Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_equal_spectra_have_distance_zero_in_any_order():
    assert spectrum_distance(DENSE, DENSE) == 0
    assert spectrum_distance(DENSE.flip(0).tolist(), DENSE) == 0
    assert spectrum_distance(DENSE, DENSE, match_trace=True) == 0


def test_a_common_factor_counts_in_decades_unless_traces_are_matched():
    for factor in (10.0, 0.01):
        assert spectrum_distance(factor * DENSE, DENSE) == pytest.approx(abs(math.log10(factor)))
        assert spectrum_distance(factor * DENSE, DENSE, match_trace=True) == pytest.approx(0, abs=1e-12)


def test_it_is_the_same_from_either_side_above_the_floor():
    other = DENSE * 10 ** (0.3 * noise())
    assert spectrum_distance(other, DENSE) == pytest.approx(spectrum_distance(DENSE, other))


def test_it_grows_with_the_perturbation_and_sees_small_eigenvalues_too():
    distances = [spectrum_distance(DENSE * 10 ** (size * noise()), DENSE) for size in (0.01, 0.1, 0.5, 1.0)]
    assert distances == sorted(distances)
    assert distances[0] > 0
    small = DENSE.clone()
    small[-5:] /= 100
    assert spectrum_distance(small, DENSE) == pytest.approx(2 * math.sqrt(5 / 50))


def test_zeros_and_rounding_errors_are_all_the_same_and_finite():
    singular, rounding, negative = DENSE.clone(), DENSE.clone(), DENSE.clone()
    singular[-5:], rounding[-5:], negative[-5:] = 0.0, 1e-13, -1e-13
    reference = spectrum_distance(singular, DENSE)
    assert 0 < reference < math.inf
    assert spectrum_distance(rounding, DENSE) == spectrum_distance(negative, DENSE) == reference
    assert spectrum_distance(singular, rounding) == 0
    for match_trace in (False, True):
        collapsed = spectrum_distance(torch.zeros(50), DENSE, match_trace=match_trace)
        assert reference < collapsed < 6.0  # all at the floor, six decades below the largest


def test_the_floor_is_relative_to_the_reference():
    lower = DENSE.clone()
    lower[-1] = 1e-9
    distances = [spectrum_distance(1e6 * lower, 1e6 * DENSE, floor=floor) for floor in (1e-3, 1e-4, 1e-6)]
    assert distances == pytest.approx([0, 1 / math.sqrt(50), 3 / math.sqrt(50)], abs=1e-9)


def test_spectra_that_cannot_be_compared():
    with pytest.raises(ntksap.InputError, match="49 and 50"):
        spectrum_distance(DENSE[1:], DENSE)
    with pytest.raises(ntksap.InputError, match="no eigenvalue above 0"):
        spectrum_distance(DENSE, 0 * DENSE)
