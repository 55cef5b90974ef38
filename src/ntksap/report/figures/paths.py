"""The node–path figure: how many paths masks leave, against how many channels lie on one."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ntksap.analysis import Diagnosis
from ntksap.report.figures.style import STYLE, looks

Point = tuple[float, float, float]  # channels on a path, log₁₀ of paths, sparsity
_BESIDE = ((5, -8), (5, 4), (-5, 4), (-5, -8))  # of a marker, in points: where its sparsity may be written
_CLOSE = 30  # pixels between points that one sparsity is written beside


def node_path_figure(found: Sequence[tuple[str, Diagnosis]], title: str) -> Figure:
    """Draw the logarithm of the number of paths against effective nodes: output channels that lie on a path.

    ``found`` holds (label, diagnosis) of masks for one network. Masks that share a label and a sparsity are seeds:
    small markers around their mean. A line joins the means of a label, from the densest to the sparsest, whose
    sparsities are written beside them. Masks without a path cannot be drawn; a line of text below names them.
    """
    lines: dict[str, list[Point]] = {}
    cut = []
    for label, one in found:
        if isinstance(one.log10_paths, str) or one.log10_paths == -math.inf:
            cut.append(f"{label} at {one.sparsity:.2%}")
        else:
            lines.setdefault(label, []).append((one.units[0], one.log10_paths, one.sparsity))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.6, 4.4), layout="constrained")
        axes = figure.subplots()
        ends: list[Point] = []
        for label, look in looks(list(lines)).items():
            seeds = by_sparsity(lines[label])
            means: list[Point] = [tuple(map(fmean, zip(*points, strict=True))) for points in seeds]  # type: ignore[misc]
            x, y, _ = zip(*means, strict=True)
            how: Any = {"color": look.colour, "marker": look.marker[1], "alpha": 0.9}
            axes.plot(x, y, **how, linestyle=look.dash[1], linewidth=look.width, label=label)
            for points in (points for points in seeds if len(points) > 1):
                axes.plot(*list(zip(*points, strict=True))[:2], **{**how, "alpha": 0.45}, linestyle="", markersize=3)
            ends += [means[0], *means[1:][-1:]]
        total = f" (of {found[0][1].units[1]:,})" if found else ""
        axes.set_xlabel(f"effective nodes: output channels that lie on a path{total}")
        axes.set_ylabel("log₁₀ of the number of paths")
        axes.set_title(title, loc="left", fontsize=10)
        if lines:
            axes.legend(frameon=False, fontsize=8)
        several = any(len(points) > 1 for line in lines.values() for points in by_sparsity(line))
        notes = ["small: single seeds; large: their means"] if several else []
        notes += [f"not shown, as no path could be counted: {', '.join(cut)}"] if cut else []
        if notes:
            figure.supxlabel("\n".join(notes), fontsize=8)
        _write_sparsities(figure, axes, ends)
        return figure


def by_sparsity(points: Sequence[Point]) -> list[list[Point]]:
    """Return points in groups of one sparsity, the densest first; densities within about 1 % of each other are one."""
    groups: dict[int, list[Point]] = {}
    for point in points:
        groups.setdefault(round(100 * math.log(max(1 - point[2], 1e-9))), []).append(point)
    return [groups[key] for key in sorted(groups, reverse=True)]


def _write_sparsities(figure: Figure, axes: Axes, ends: Sequence[Point]) -> None:
    """Write sparsities beside points, once beside several that are close, and none over another."""
    figure.draw_without_rendering()  # which decides where everything stands
    written: list[tuple[str, Any, Bbox]] = []
    for x, y, sparsity in ends:
        said, place = f"{100 * sparsity:.4g} %", axes.transData.transform((x, y))
        if any(said == other and math.dist(place, there) < _CLOSE for other, there, _ in written):
            continue
        for across, up in _BESIDE:
            text = axes.annotate(
                said,
                (x, y),
                (across, up),
                textcoords="offset points",
                ha="left" if across > 0 else "right",
                fontsize=6.5,
                color="#555555",
                in_layout=False,
            )
            box = text.get_window_extent()
            if axes.bbox.containsx(box.x1) and not any(box.overlaps(other) for *_, other in written):
                written.append((said, place, box))
                break
            text.remove()
