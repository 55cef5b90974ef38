"""The picture of the start page: ``python docs/figures/start.py`` writes its halves, for light and for dark pages.

The networks are a small perceptron before and after `ntksap.prune`; accuracies come from results/digits/table.csv.
"""

import csv
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import nn

import ntksap

HERE = Path(__file__).parent
TABLE = HERE.parent / "results" / "digits" / "table.csv"
SIZES = (8, 14, 14, 6)
INK = {"light": "#263238", "dark": "#eceff1"}
COLOURS = {"ntk-sap": "#009e8e", "magnitude": "#8e7cc3", "random": "#ef6c00"}


def draw_network(axes: Axes, masks: list[torch.Tensor], ink: str) -> None:
    """Draw one line for each kept weight between columns of units."""
    heights = [[(i - (size - 1) / 2) / max(SIZES) for i in range(size)] for size in SIZES]
    for layer, mask in enumerate(masks):
        ends = [((layer, heights[layer][i]), (layer + 1, heights[layer + 1][o])) for o, i in mask.nonzero().tolist()]
        axes.add_collection(LineCollection(ends, colors=COLOURS["ntk-sap"], linewidths=1.0, alpha=0.75))
    for layer, column in enumerate(heights):
        axes.scatter([layer] * len(column), column, s=26, color=ink, zorder=3)
    axes.set_xlim(-0.15, len(SIZES) - 0.85)
    axes.axis("off")


def draw_accuracy(axes: Axes, ink: str) -> None:
    """Draw test accuracy against sparsity with the spread of three seeds, and the dense network's."""
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    dense = float(next(row["mean"] for row in rows if row["method"] == "dense"))
    axes.axhline(dense, color=ink, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(
        1, dense - 1, f"dense {dense:.1f} %", transform=axes.get_yaxis_transform(), color=ink, ha="right", va="top"
    )
    for method, colour in COLOURS.items():
        points = [(float(r["sparsity"]), float(r["mean"]), float(r["std"])) for r in rows if r["method"] == method]
        places = range(len(points))
        axes.errorbar(places, [p[1] for p in points], [p[2] for p in points], color=colour, marker="o", capsize=3, lw=2)
        axes.text(places[-1] + 0.13, points[-1][1], method, color=colour, va="center", fontweight="bold")
    axes.set_xticks(places, [f"{p[0]:.0%}" for p in points])
    axes.set_xlim(-0.2, len(points) + 0.25)
    axes.set_xlabel("weights removed before training")
    axes.set_title("3. train as always: test accuracy (%)", fontsize=11, pad=10)
    axes.spines[["top", "right"]].set_visible(False)


def draw_pruning(ink: str) -> Figure:
    """Return a small network before and after pruning."""
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(SIZES)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    masks = ntksap.prune(model, sparsity=0.8, input_shape=(SIZES[0],))
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    before, after = figure.subplots(1, 2)
    draw_network(before, [torch.ones_like(mask) for mask in masks.values()], ink)
    before.set_title(f"1. a fresh network: {masks.total} weights", fontsize=11, pad=10)
    draw_network(after, list(masks.values()), ink)
    after.set_title(f"2. ntksap.prune(model, 0.8): {masks.kept} stay", fontsize=11, pad=10)
    return figure


def draw_training(ink: str) -> Figure:
    """Return what becomes of pruned networks."""
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    draw_accuracy(figure.subplots(), ink)
    return figure


if __name__ == "__main__":
    for theme, ink in INK.items():
        inked = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
        with mpl.rc_context({**inked, "svg.hashsalt": "start"}):
            for name, figure in {"pruning": draw_pruning(ink), "training": draw_training(ink)}.items():
                figure.savefig(HERE / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None})
