"""Layers as a table in plain text."""

import math
from collections.abc import Iterable, Sequence


def layer_table(layers: Iterable[tuple[str, Sequence[int], int]]) -> str:
    """Return name, shape, kept/total and density of each (name, shape, kept), and of all together."""
    rows = [("layer", "shape", "kept/total", "density")]
    kept = total = 0
    for name, shape, count in layers:
        size = math.prod(shape)
        rows.append((name, "×".join(str(length) for length in shape), *_counts(count, size)))
        kept, total = kept + count, total + size
    rows.append(("total", "", *_counts(kept, total)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {shape:>{widths[1]}}  {counts:>{widths[2]}}  {density:>{widths[3]}}"
        for name, shape, counts, density in rows
    ]
    rule = "─" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _counts(kept: int, total: int) -> tuple[str, str]:
    share = kept / total if total else math.nan
    return f"{kept:,}/{total:,}", f"{share:.2%}"
