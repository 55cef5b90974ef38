"""How far each method is behind the best at its sparsity, paired over seeds, with confidence intervals.

Two methods with the same seed start from the same weights and see the same batches, so their accuracies are compared
seed by seed: what a good or bad seed does to both cancels. The interval is Student's, d̄ ± t(0.975, n−1)·s/√n.

Whether the best mean is the best method is decided by the same intervals: it is if none of them includes zero. No
correction for the number of methods is made: a simulation in the tests bounds how often equal methods get a verdict.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

from ntksap.report.table import Cell, ranks
from ntksap.runs import DENSE

MIN_SEEDS = 3
"""With fewer seeds an interval says nothing: with two, it reaches nine standard deviations to either side."""
Mark = Literal["best", "second"]


@dataclass(frozen=True)
class Difference:
    """How far ``best`` is ahead of ``method``, in points: the mean over common seeds and its 95 % interval."""

    best: str
    method: str
    sparsity: float
    mean: float
    low: float
    high: float
    seeds: int

    @property
    def significant(self) -> bool:
        """Whether the seeds tell the two apart."""
        return self.low > 0


def differences(table: Sequence[Cell]) -> dict[tuple[str, float], Difference]:
    """Return the difference of each method from the best at its sparsity, all over the same `MIN_SEEDS` or more seeds.

    They are taken in the order of their means, and one that would leave fewer seeds in common is left out. The best is
    the one with the highest mean over the common seeds, the first if several have it.
    """
    found: dict[tuple[str, float], Difference] = {}
    enough = [cell for cell in table if cell.method != DENSE and cell.seeds >= MIN_SEEDS]
    for sparsity in sorted({cell.sparsity for cell in enough}):
        compared: list[Cell] = []
        common: set[int] = set()
        for cell in sorted((cell for cell in enough if cell.sparsity == sparsity), key=lambda cell: -cell.mean):
            shared = common & cell.by_seed.keys() if compared else set(cell.by_seed)
            if len(shared) >= MIN_SEEDS:
                common = shared
                compared.append(cell)
        best = max(compared, key=lambda cell: statistics.fmean(cell.by_seed[seed] for seed in sorted(common)))
        for cell in compared:
            gap = difference(best, cell, common)
            if cell is not best and gap is not None:
                found[cell.method, sparsity] = gap
    return found


def difference(best: Cell, cell: Cell, seeds: Collection[int] | None = None) -> Difference | None:
    """Return how far ``best`` is ahead of the other, or None if they share fewer than `MIN_SEEDS` seeds.

    ``seeds``: which of them to compare; by default all that both have.
    """
    seeds = best.by_seed.keys() & cell.by_seed if seeds is None else seeds
    gaps = [best.by_seed[seed] - cell.by_seed[seed] for seed in sorted(seeds)]
    if len(gaps) < MIN_SEEDS:
        return None
    mean, half = statistics.fmean(gaps), _half_width(gaps, best.test_images)
    return Difference(best.method, cell.method, cell.sparsity, mean, mean - half, mean + half, len(gaps))


def marks(table: Sequence[Cell]) -> dict[tuple[str, float], Mark]:
    """Return what stands out in each column of a table of accuracies.

    Where there are differences, all methods that the seeds cannot tell from the best mean are best; otherwise best and
    second are the highest means.
    """
    found = differences(table)
    tested = {sparsity for _, sparsity in found}
    made: dict[tuple[str, float], Mark] = {}
    for (method, sparsity), place in ranks(table).items():
        difference = found.get((method, sparsity))
        if sparsity not in tested:
            if place <= 2:
                made[method, sparsity] = "best" if place == 1 else "second"
        elif difference is not None and not difference.significant:
            made[method, sparsity] = "best"
    made |= {(one.best, one.sparsity): "best" for one in found.values()}
    return made


def _half_width(gaps: Sequence[float], images: int | None) -> float:
    """Return half the width of the interval of the mean of paired differences.

    An accuracy is a whole number of images, so that differences may agree by rounding alone: their standard deviation
    is taken no smaller than that of two rounded numbers, step/√6.
    """
    std = max(statistics.stdev(gaps), 100 / images / math.sqrt(6) if images else 0.0)
    return float(stdtrit(len(gaps) - 1, 0.975)) * std / math.sqrt(len(gaps))
