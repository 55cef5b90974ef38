"""Sharing a whole number: exact in the sum, within bounds, in proportion."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ntksap.pruning.apportion import apportion

sizes = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@st.composite
def problems(draw):
    most = draw(sizes)
    least = [draw(st.integers(0, size)) for size in most]
    kept = draw(st.integers(sum(least), sum(most)))
    quotas = [draw(st.sampled_from([0.0, 0.5, 1.0, 3.0, 1000.0]) | st.floats(0, 50)) for _ in most]
    return kept, quotas, least, most


@given(problems())
def test_the_sum_is_exact_and_the_bounds_hold(problem):
    kept, quotas, least, most = problem
    shares = apportion(kept, quotas, least, most)
    assert sum(shares) == kept
    assert all(low <= share <= high for low, share, high in zip(least, shares, most, strict=True))


@given(problems())
def test_shares_that_no_bound_stops_are_in_proportion_within_one(problem):
    kept, quotas, least, most = problem
    shares = apportion(kept, quotas, least, most)
    free = [i for i in range(len(most)) if least[i] < shares[i] < most[i] and quotas[i] > 1e-6 * max(quotas)]
    for i in free:
        for j in free:
            # each differs from its real share by less than 1, and real shares are in the ratio of the quotas
            assert (shares[i] - 1) * quotas[j] < (shares[j] + 1) * quotas[i] * (1 + 1e-9)


@given(sizes, st.data())
def test_without_bounds_it_is_the_largest_remainder_with_ties_to_the_lower_index(parts, data):
    kept = data.draw(st.integers(0, sum(parts)))
    exact = [Fraction(kept * part, sum(parts)) for part in parts]  # the slow twin, in whole numbers
    expected = [int(share) for share in exact]
    order = sorted(range(len(parts)), key=lambda i: (expected[i] - exact[i], i))
    for i in order[: kept - sum(expected)]:
        expected[i] += 1
    assert apportion(kept, parts, [0] * len(parts), parts) == expected


@given(problems(), st.data())
def test_groups_keep_their_least_and_all_else_still_holds(problem, data):
    kept, quotas, least, most = problem
    cut = data.draw(st.integers(0, len(most)))
    members = [list(range(cut)), list(range(cut, len(most)))]
    groups = []
    spare = kept - sum(least)
    for part in members:
        if part:
            extra = data.draw(st.integers(0, min(spare, sum(most[i] - least[i] for i in part))))
            groups.append((part, sum(least[i] for i in part) + extra))
            spare -= extra
    shares = apportion(kept, quotas, least, most, groups)
    assert sum(shares) == kept
    assert all(low <= share <= high for low, share, high in zip(least, shares, most, strict=True))
    assert all(sum(shares[i] for i in part) >= bound for part, bound in groups)


def test_a_group_above_its_least_changes_nothing():
    assert apportion(10, [4, 4, 2], [0] * 3, [9] * 3, [([0, 1], 3)]) == apportion(10, [4, 4, 2], [0] * 3, [9] * 3)


def test_a_group_that_falls_short_takes_from_the_others_in_proportion():
    assert apportion(20, [1, 1, 6, 12], [0] * 4, [20] * 4, [([0, 1], 8)]) == [4, 4, 4, 8]
