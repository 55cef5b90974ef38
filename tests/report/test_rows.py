import csv

import pytest

from ntksap.report.differences import differences
from ntksap.report.experiments import experiments
from ntksap.report.rows import rows, to_csv
from tests.report.finished_runs import seeds

BEHIND = ("behind_best", "behind_best_low", "behind_best_high")


@pytest.fixture
def table():
    runs = [*seeds("snip", 0.9, 0.80, 0.82, 0.84), *seeds("grasp", 0.9, 0.70, 0.72, 0.75), *seeds("force", 0.9, 0.9)]
    (one,) = experiments([*runs, *seeds("snip", 0.5, 0.9, 0.9), *seeds("dense", 0.0, 0.9, 0.9, 0.9)])
    return one.table


def test_each_row_says_how_far_it_is_behind_the_best_with_an_interval_where_seeds_suffice(table):
    found = {(row["method"], row["sparsity"]): tuple(row[key] for key in BEHIND) for row in rows(table)}
    gap = differences(table)["grasp", 0.9]
    assert found["grasp", 0.9] == (gap.mean, gap.low, gap.high)
    assert found["snip", 0.9] == (0, 0, 0)
    assert {found[key] for key in (("force", 0.9), ("snip", 0.5), ("dense", 0.0))} == {(None, None, None)}


def test_what_is_not_known_is_empty_in_the_csv(table):
    found = {
        (row["method"], row["sparsity"]): [row[key] for key in BEHIND]
        for row in csv.DictReader(to_csv(table).splitlines())
    }
    assert found["force", "0.9"] == ["", "", ""]
    assert float(found["grasp", "0.9"][0]) == pytest.approx(100 * (0.82 - 2.17 / 3))
