"""All that is known about each method and sparsity, as plain values and as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ntksap.report.differences import differences
from ntksap.report.table import Cell

_BEHIND = ("behind_best", "behind_best_low", "behind_best_high")


def rows(table: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the cells as plain values, each with how far it is behind the best at its sparsity.

    ``behind_best`` is that difference in points over common seeds, ``behind_best_low`` and ``behind_best_high`` are its
    95 % interval, see `ntksap.report.differences`. They are 0 for the best itself, and None where seeds are too few.
    """
    gaps = differences(table)
    none = {(gap.best, gap.sparsity): (0.0, 0.0, 0.0) for gap in gaps.values()}
    known = {**none, **{key: (gap.mean, gap.low, gap.high) for key, gap in gaps.items()}}
    return [
        {**asdict(cell), **dict(zip(_BEHIND, known.get((cell.method, cell.sparsity), (None,) * 3), strict=True))}
        for cell in table
    ]


def to_csv(table: Sequence[Cell]) -> str:
    """Return the cells as CSV, one row each."""
    text = io.StringIO()
    names = [name for name in Cell.__dataclass_fields__ if name != "by_seed"]  # several numbers do not make a column
    writer = csv.DictWriter(text, [*names, *_BEHIND], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows(table))
    return text.getvalue()
