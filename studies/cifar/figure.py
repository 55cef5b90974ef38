"""Draw accuracy against multiply-adds of the CNNs in results.jsonl, one panel for each network and sparsity.

    python -m studies.cifar.figure

A colour for each way to count, a mark for each way to place; bars are standard deviations over seeds.
"""

import json
from pathlib import Path
from statistics import fmean, stdev

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ntksap.report.figures.style import STYLE, write_figure
from studies.cifar.accuracy import LABELS, PLACES, parts_of
from studies.grid import Run

RESULTS = Path(__file__).with_name("results.jsonl")
PICTURE = Path(__file__).parents[2] / "docs" / "figures" / "places.png"
COLOURS = {"erk": "#8a8a8a", "closed-form": "#7f4fc9", "ntk-sap": "#d62728", "ntk-sap-analytic": "#f08a24"}
MARKS = dict(zip(PLACES, "osD", strict=True))
NAMES = {"resnet20": "ResNet-20", "vgg16-bn": "VGG-16"}


def figure(runs: list[Run]) -> Figure:
    """Return the figure of all runs of networks in `NAMES`."""
    cases = [case for case in sorted({(run["model"], -run["sparsity"]) for run in runs}) if case[0] in NAMES]
    with rc_context(STYLE):
        drawn = Figure(figsize=(3.1 * len(cases) + 1.9, 3.4), layout="constrained")
        for place, (model, sparsity) in enumerate(cases, 1):
            axes = drawn.add_subplot(1, len(cases), place)
            some = [run for run in runs if (run["model"], -run["sparsity"]) == (model, sparsity)]
            axes.set_title(
                f"{NAMES[model]}, {-sparsity:.2%}, {some[0]['epochs']} epoch{'s' * (some[0]['epochs'] > 1)}",
                fontsize=10,
            )
            axes.set_xlabel("multiply-adds (millions)")
            _draw(axes, some)
        drawn.axes[0].set_ylabel("test accuracy (%)")
        lines = [Line2D([], [], color=colour, lw=5, label=LABELS.get(c, c)) for c, colour in COLOURS.items()]
        lines += [
            Line2D([], [], color="k", ls="", marker=mark, label="places by score" if p == "score" else f"{p} places")
            for p, mark in MARKS.items()
        ]
        drawn.legend(handles=lines, loc="outside right upper", frameon=False, fontsize=9)
    return drawn


def _draw(axes: Axes, runs: list[Run]) -> None:
    for way in dict.fromkeys(run["way"] for run in runs):
        those = [run for run in runs if run["way"] == way]
        found = [100 * run["accuracy"] for run in those]
        counts, places = parts_of(way)
        axes.errorbar(
            fmean(run["multiply_adds"] for run in those)
            / 1e6
            * (1 + 0.012 * (PLACES.index(places) - 1)),  # side by side
            fmean(found),
            stdev(found) if len(found) > 1 else None,
            color=COLOURS[counts],
            marker=MARKS[places],
            capsize=2,
            lw=1,
        )


if __name__ == "__main__":
    write_figure(figure([json.loads(line) for line in RESULTS.read_text().splitlines()]), PICTURE)
