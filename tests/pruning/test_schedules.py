import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntksap import InputError
from ntksap.pruning.schedules import SCHEDULES, density_of, kept_of, schedule_named

densities = st.floats(1e-6, 1, exclude_min=True)
rounds = st.integers(1, 300)
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


@each_schedule
@given(density=densities, count=rounds)
def test_falls_from_one_to_the_density_exactly(schedule, density, count):
    values = [schedule(density, t, count) for t in range(count + 1)]
    assert values[0] == 1
    assert values[-1] == density
    assert all(earlier >= later for earlier, later in itertools.pairwise(values))


@given(density=densities, count=st.integers(2, 50))
def test_exponential_removes_the_same_share_each_round_and_linear_the_same_number(density, count):
    exponential = [SCHEDULES["exponential"](density, t, count) for t in range(count + 1)]
    assert exponential[1] / exponential[0] == pytest.approx(exponential[-1] / exponential[-2])
    linear = [SCHEDULES["linear"](density, t, count) for t in range(count + 1)]
    assert linear[0] - linear[1] == pytest.approx(linear[-2] - linear[-1], abs=1e-12)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 10**9))
def test_kept_is_rounded_and_at_least_one(sparsity, total):
    density = density_of(sparsity)
    kept = kept_of(density, total)
    assert 1 <= kept <= total
    assert kept == max(1, round((1 - sparsity) * total))


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan"), float("inf")])
def test_what_is_no_sparsity_is_refused(sparsity):
    with pytest.raises(InputError, match="0 ≤ sparsity < 1"):
        density_of(sparsity)


def test_percent_are_recognised():
    with pytest.raises(InputError, match=r"write 0\.982"):
        density_of(98.2)


def test_the_papers_sparsities():
    percent = [100 * (1 - 0.8**k) for k in range(2, 19, 2)]
    assert percent == pytest.approx([36.00, 59.04, 73.79, 83.22, 89.26, 93.13, 95.60, 97.19, 98.20], abs=0.005)


def test_unknown_schedule():
    with pytest.raises(InputError, match="Did you mean 'exponential'"):
        schedule_named("exponental")
