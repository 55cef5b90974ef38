"""Figures in files."""

import pytest

from ntksap.report import accuracy_figure
from ntksap.report.experiments import experiments
from tests.report.finished_runs import seeds


def bars(*runs):
    """The ends of the error bars of the figure, by where they stand."""
    (one,) = experiments(runs)
    (axes,) = accuracy_figure(one.table, "title").axes
    lines = [container.lines[2][0].get_segments()[0] for container in axes.containers]
    return {float(line[0][0]): [float(y) for _, y in line] for line in lines}


def test_a_single_sparsity_has_bars_of_the_seeds_side_by_side():
    found = bars(*seeds("snip", 0.9, 0.8, 0.82, 0.84), *seeds("grasp", 0.9, 0.7, 0.7, 0.76), *seeds("force", 0.9, 0.5))
    assert len(found) == 2  # one seed has no spread
    assert sorted(map(tuple, found.values()))[1] == pytest.approx((80, 84))
    assert all(0.05 < density < 0.2 for density in found)


def test_a_method_of_one_sparsity_has_a_bar_beside_those_of_several():
    found = bars(*seeds("snip", 0.9, 0.8, 0.82, 0.84), *seeds("grasp", 0.9, 0.7, 0.8), *seeds("grasp", 0.5, 0.7, 0.8))
    assert list(found) == pytest.approx([0.1])
    assert list(found.values()) == [pytest.approx([80, 84])]
