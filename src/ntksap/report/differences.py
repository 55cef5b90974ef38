"""How far each method stays behind the best of its sparsity, paired over seeds, with confidence intervals.

Two methods with one seed start from the same weights and see the same batches, so their accuracies are compared seed by
seed: what a good or bad seed does to both cancels. The interval is Student's, d̄ ± t(0.975, n−1)·s/√n, for each
difference on its own; whether the seeds tell a method from the best is decided for all methods of a sparsity together
(Holm), since among many methods some would seem worse by chance.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtr, stdtrit

from ntksap.report.table import Cell, ranks
from ntksap.runs import DENSE

MIN_SEEDS = 3
"""With fewer seeds an interval says nothing: with two, it reaches nine standard deviations to either side."""
_LEVEL = 0.05
Mark = Literal["best", "second"]


@dataclass(frozen=True)
class Difference:
    """What ``best`` has ahead of ``method``, in points: the mean over common seeds and its 95 % interval.

    ``separated``: the seeds tell the two apart, with all methods of this sparsity taken together at 5 %.
    """

    best: str
    method: str
    sparsity: float
    mean: float
    low: float
    high: float
    seeds: int
    separated: bool


def differences(table: Sequence[Cell]) -> dict[tuple[str, float], Difference]:
    """Return the difference of each method to the best of its sparsity, where both have `MIN_SEEDS` seeds in common.

    The best itself has none. The best is that with the highest mean; the first of the table if several have it.
    """
    found: dict[tuple[str, float], Difference] = {}
    for sparsity in sorted({cell.sparsity for cell in table if cell.method != DENSE}):
        here = [cell for cell in table if cell.method != DENSE and cell.sparsity == sparsity]
        best = max(here, key=lambda cell: cell.mean)
        pairs = [
            (cell, [best.by_seed[seed] - cell.by_seed[seed] for seed in sorted(best.by_seed.keys() & cell.by_seed)])
            for cell in here
            if cell is not best
        ]
        tests = {cell.method: _paired(gaps, best.test_images) for cell, gaps in pairs if len(gaps) >= MIN_SEEDS}
        worse = _holm({method: p for method, (_, _, p, _) in tests.items()})
        for method, (mean, half, _, seeds) in tests.items():
            found[method, sparsity] = Difference(
                best.method, method, sparsity, mean, mean - half, mean + half, seeds, method in worse and mean > 0
            )
    return found


def marks(table: Sequence[Cell]) -> dict[tuple[str, float], Mark]:
    """Return what stands out in each column of a table of accuracies.

    Where there are differences, those are best that the seeds cannot tell from the best mean; else best and second are
    the highest means.
    """
    found = differences(table)
    tested = {sparsity for _, sparsity in found}
    made: dict[tuple[str, float], Mark] = {}
    for (method, sparsity), place in ranks(table).items():
        difference = found.get((method, sparsity))
        if sparsity not in tested:
            if place <= 2:
                made[method, sparsity] = "best" if place == 1 else "second"
        elif difference is not None and not difference.separated:
            made[method, sparsity] = "best"
    made |= {(one.best, one.sparsity): "best" for one in found.values()}
    return made


def _paired(gaps: Sequence[float], images: int | None) -> tuple[float, float, float, int]:
    """Return mean, half the width of the interval, p-value and number of paired differences.

    An accuracy is a whole number of images, so that differences may agree by rounding alone: their standard deviation
    is taken no smaller than that of two rounded numbers, step/√6.
    """
    n, mean = len(gaps), statistics.fmean(gaps)
    std = max(statistics.stdev(gaps), 100 / images / math.sqrt(6) if images else 0.0)
    error = std / math.sqrt(n)
    if error == 0:
        return mean, 0.0, 1.0 if mean == 0 else 0.0, n
    return mean, float(stdtrit(n - 1, 1 - _LEVEL / 2)) * error, 2 * float(stdtr(n - 1, -abs(mean) / error)), n


def _holm(p_values: dict[str, float]) -> set[str]:
    """Return the names whose p-values hold together at `_LEVEL`: the k-th smallest of m is held against level/(m−k)."""
    held: set[str] = set()
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > _LEVEL / (len(p_values) - place):
            break
        held.add(name)
    return held
