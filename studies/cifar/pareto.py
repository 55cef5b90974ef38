"""Draw accuracy against cost of the results that `studies.cifar.sweep` keeps.

    python -m studies.cifar.pareto methods   # against multiply-adds, 98.20 %, 5 epochs
    python -m studies.cifar.pareto gain      # against multiply-adds, weights and the time of a training step

Bars are standard deviations over seeds; a dotted line joins what nothing as cheap surpasses, by means.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ntksap.report.charts.accuracy import pareto_front
from ntksap.report.figures.style import STYLE, looks, write_figure
from studies.cifar.sweep import DECAY, ERK, kept_runs

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
Cost = Callable[[dict[str, Any]], float | None]
COSTS: dict[str, Cost] = {
    "multiply-adds (millions)": lambda run: run["inference_flops"] / 1e6,
    "weights (thousands)": lambda run: (run["kept"] or 0) / 1e3 or None,
    "time of a training step ÷ the dense network's": lambda run: _inverse(run["timings"].get("speedup_step_64")),
}
PANELS = {"methods": ([(5, 0.982)], list(COSTS)[:1]), "gain": ([(10, 0.0), (10, 0.75), (10, 0.5)], list(COSTS))}

BOUNDS = {"dense": "the dense network", "imp": "imp"}
"""Ways far above the others, which the title names: without masks, and with masks found by training many times."""


LOWEST = 56.0
"""Ways with a lower accuracy, in per cent, are not drawn: random masks, and those of prospr."""


def figure(sweep: str) -> Figure:
    """Return a panel for each cost."""
    cases, costs = PANELS[sweep]
    kept = kept_runs(sweep)
    ways: dict[str, list[list[dict[str, Any]]]] = {}
    for case in cases:
        for way, runs in kept.get(case, {}).items():
            if not way.endswith((ERK, DECAY)):
                ways.setdefault(way, []).append(runs)
    bounds = {way: ways.pop(way) for way in BOUNDS if way in ways}
    ways = {way: several for way, several in ways.items() if _accuracy(several[0])[0] > LOWEST}
    ways = dict(sorted(ways.items(), key=lambda item: -_accuracy(item[1][0])[0]))
    with rc_context(STYLE):
        drawn = Figure(figsize=(4.2 * len(costs) + 3, 4.8), layout="constrained")
        for place, cost in enumerate(costs, 1):
            axes = drawn.add_subplot(1, len(costs), place)
            axes.set(xlabel=cost, xscale="log")
            _draw(axes, ways, COSTS[cost])
            for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
                ticks(FuncFormatter(lambda value, _: f"{value:g}"))
        drawn.axes[0].set_ylabel("test accuracy (%)")
        title = ", ".join(f"{BOUNDS[way]}: {_accuracy(several[0])[0]:.1f} %" for way, several in bounds.items())
        if sweep == "methods":
            drawn.axes[0].set_ylim(LOWEST, 70)
            drawn.axes[0].set_title(title, loc="right")
            _name_points(drawn.axes[0], ways, COSTS[costs[0]])
        else:
            handles, labels = drawn.axes[0].get_legend_handles_labels()
            drawn.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9, title=title)
    return drawn


def _name_points(axes: Axes, ways: dict[str, list[list[dict[str, Any]]]], cost: Cost) -> None:
    """Write the name of each point, with a line to it: beside the panel, or in it for points of its middle."""
    low, high = axes.get_ylim()
    points = {way: (fmean(cost(run) or 0 for run in runs), _accuracy(runs)[0]) for way, (runs, *_) in ways.items()}
    left, right = min(x for x, _ in points.values()) * 0.9, max(x for x, _ in points.values()) * 1.05
    axes.set_xlim(left, right)
    look = looks(list(ways))
    inside = [way for way, (x, _) in points.items() if 0.42 < math.log(x / left, right / left) < 0.65]
    outside = [way for way in points if way not in inside]
    for names, column, ha in ((inside, 0.42, "right"), (outside, 1.04, "left")):
        heights = _apart([(points[way][1] - low) / (high - low) for way in names], 0.045)
        for way, height in zip(names, heights, strict=True):
            axes.annotate(
                way,
                points[way],
                (column, height),
                textcoords="axes fraction",
                ha=ha,
                va="center",
                fontsize=9,
                color=look[way].colour,
                arrowprops={"arrowstyle": "-", "color": look[way].colour, "lw": 0.5, "alpha": 0.6},
            )


def _apart(heights: list[float], gap: float) -> list[float]:
    """Return heights, given from the highest to the lowest, moved as little as needed to be ``gap`` apart.

    >>> [round(height, 2) for height in _apart([0.5, 0.5, 0.1], 0.1)]
    [0.55, 0.45, 0.1]
    """
    blocks: list[list[float]] = []  # [mean of the middle, how many]: neighbours that touch move as one
    for height in heights:
        blocks.append([height, 1])
        while len(blocks) > 1 and blocks[-2][0] - blocks[-1][0] < gap * (blocks[-2][1] + blocks[-1][1]) / 2:
            (upper, many), (lower, few) = blocks[-2:]
            blocks[-2:] = [[(upper * many + lower * few) / (many + few), many + few]]
    return [middle + gap * ((many - 1) / 2 - place) for middle, many in blocks for place in range(int(many))]


def _draw(axes: Axes, ways: dict[str, list[list[dict[str, Any]]]], cost: Cost) -> None:
    look, points = looks(list(ways)), []
    for way, several in ways.items():
        found = []
        for runs in several:
            spent = [value for run in runs if (value := cost(run))]
            if spent:
                found.append((fmean(spent), *_accuracy(runs)))
        points += [(x, mean) for x, mean, _ in found]
        if found:
            x, mean, spread = zip(*found, strict=True)
            mark = {"color": look[way].colour, "marker": look[way].marker[1], "ls": look[way].dash[1]}
            axes.errorbar(x, mean, spread, label=way, capsize=2, lw=1, **mark)
    front = pareto_front(points)
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color="#8a8a8a", lw=1, ls=":")


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def _accuracy(runs: list[dict[str, Any]]) -> tuple[float, float]:
    found = [100 * run["top1"] for run in runs]
    return fmean(found), stdev(found) if len(found) > 1 else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", choices=list(PANELS))
    given = parser.parse_args()
    write_figure(figure(given.sweep), FIGURES / f"pareto-{given.sweep}.png")
