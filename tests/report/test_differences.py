"""Paired differences, against scipy's own paired test; verdicts, by how often they are wrong."""

import numpy as np
import pytest
from scipy import stats

from ntksap.report.differences import differences, marks
from ntksap.report.experiments import experiments
from tests.report.finished_runs import seeds


def table(*runs):
    (one,) = experiments(runs)
    return one.table


def test_intervals_are_those_of_the_paired_t_test():
    best, other = [0.81, 0.85, 0.80, 0.88], [0.78, 0.79, 0.80, 0.81]
    found = differences(table(*seeds("snip", 0.9, *best), *seeds("grasp", 0.9, *other)))
    assert set(found) == {("grasp", 0.9)}
    one = found["grasp", 0.9]
    test = stats.ttest_rel(np.multiply(best, 100), np.multiply(other, 100))
    low, high = test.confidence_interval(0.95)
    assert (one.best, one.seeds) == ("snip", 4)
    assert one.mean == pytest.approx(4.0)
    assert (one.low, one.high) == (pytest.approx(low), pytest.approx(high))
    assert one.significant == (test.pvalue < 0.05)


def test_only_seeds_that_both_have_are_paired():
    runs = [*seeds("snip", 0.9, 0.8, 0.81, 0.82, 0.99), *seeds("grasp", 0.9, 0.5, 0.51, 0.52)]
    one = differences(table(*runs))["grasp", 0.9]
    assert one.seeds == 3
    assert one.mean == pytest.approx(30.0)


def test_a_seed_that_others_lack_does_not_decide_which_is_best():
    runs = [
        *seeds("snip", 0.9, 0.80, 0.801, 0.799, 0.99),  # the highest mean, by a seed of its own
        *seeds("grasp", 0.9, 0.84, 0.842, 0.841),
        *seeds("force", 0.9, 0.50, 0.51),
    ]
    found = differences(table(*runs))
    one = found["snip", 0.9]
    assert set(found) == {("snip", 0.9)}
    assert (one.best, one.seeds, one.significant) == ("grasp", 3, True)
    assert one.mean == pytest.approx(100 * (0.841 - 0.8))
    assert marks(table(*runs)) == {("grasp", 0.9): "best"}


def test_all_are_compared_over_the_same_seeds():
    runs = [
        *seeds("snip", 0.9, 0.90, 0.91, 0.92, 0.93),
        *seeds("grasp", 0.9, 0.80, 0.82, 0.81, 0.84),
        *seeds("force", 0.9, 0.70, 0.72, 0.71),
    ]
    assert {one.seeds for one in differences(table(*runs)).values()} == {3}


def test_fewer_than_three_seeds_say_nothing():
    assert differences(table(*seeds("snip", 0.9, 0.8, 0.81), *seeds("grasp", 0.9, 0.5, 0.51))) == {}


def test_differences_that_agree_by_rounding_are_not_certain():
    runs = {images: [*seeds("snip", 0.9, *[0.8] * 3, images=images)] for images in (None, 360)}
    exact, rounded = (
        differences(table(*best, *seeds("grasp", 0.9, *[0.8 - 1 / 360] * 3, images=images)))["grasp", 0.9]
        for images, best in runs.items()
    )
    assert exact.low == pytest.approx(exact.high)
    assert rounded.mean == pytest.approx(100 / 360)
    assert not rounded.significant  # one image of 360, three times


def test_bold_is_the_best_and_what_the_seeds_cannot_tell_from_it():
    runs = [
        *seeds("snip", 0.9, 0.80, 0.82, 0.84),
        *seeds("grasp", 0.9, 0.83, 0.70, 0.75),  # behind, but not in every seed
        *seeds("force", 0.9, 0.50, 0.52, 0.54),
        *seeds("random", 0.9, 0.95),  # one seed: nothing can be said
    ]
    assert marks(table(*runs)) == {("snip", 0.9): "best", ("grasp", 0.9): "best"}


def test_bold_by_mean_where_there_are_few_seeds():
    runs = [*seeds("snip", 0.9, 0.8), *seeds("grasp", 0.9, 0.7), *seeds("force", 0.9, 0.6), *seeds("dense", 0.0, 0.9)]
    assert marks(table(*runs)) == {("snip", 0.9): "best", ("grasp", 0.9): "second"}


@pytest.mark.parametrize("methods", [2, 3, 13])
def test_equal_methods_seldom_get_a_verdict_however_many_they_are(methods):
    """Methods that differ by noise alone: a winner is announced in at most 5 % of the comparisons, but for chance."""
    generator = np.random.default_rng(0)
    drawn, wrong = 400, 0
    for _ in range(drawn):
        seed_effect = generator.normal(0, 0.02, 3)
        runs = [
            run
            for index in range(methods)
            for run in seeds(f"method-{index}", 0.9, *(0.8 + seed_effect + generator.normal(0, 0.01, 3)))
        ]
        found = differences(table(*runs)).values()
        wrong += all(one.significant for one in found)
    assert wrong <= drawn * 0.05 + 3 * (drawn * 0.05 * 0.95) ** 0.5
