"""The figure of multiply-adds against sparsity: ours as lines, the paper's as rings."""

from collections.abc import Sequence
from math import log10

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ntksap.paper.comparison import Entry
from ntksap.paper.plan import Panel, sparsity_at
from ntksap.report import STYLE, colour_of, sparsity_axis


def flops_figure(entries: Sequence[Entry], panel: Panel, title: str) -> Figure:
    """Draw the entries of a panel, both axes logarithmic, and below them ours ÷ paper."""
    sparsities = [sparsity_at(step) for step in panel.steps]
    density = {f"{100 * s:.2f} %": 1 - s for s in sparsities}
    methods = list(dict.fromkeys(entry.row for entry in entries))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
        for index, method in enumerate(methods):
            own = [entry for entry in entries if entry.row == method]
            theirs = [entry for entry in own if entry.paper is not None]
            colour = colour_of(method, index)
            look = {"color": colour, "linewidth": 2.2 if method == "ntk-sap" else 1.3}
            above.plot([density[e.column] for e in own], [e.ours for e in own], label=method, **look)
            x = [density[e.column] for e in theirs]
            above.plot(x, [e.paper for e in theirs], "o", markerfacecolor="none", markersize=6, color=colour)
            below.plot(x, [e.ours / e.paper for e in theirs], "o-", markersize=3.5, **look)
        above.set_yscale("log")
        above.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        above.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
        above.set_ylabel(f"multiply-adds (×$10^{{{round(log10(panel.unit))}}}$)")
        above.set_title(title, loc="left", fontsize=10)
        below.axhline(1, color="black", linewidth=0.8)
        below.set_ylabel("ours ÷ paper")
        sparsity_axis(below, sparsities)
        handles, labels = above.get_legend_handles_labels()
        handles.append(Line2D([], [], marker="o", markerfacecolor="none", color="black", linestyle="none"))
        figure.legend(handles, [*labels, "paper"], loc="outside right center", frameon=False, fontsize=9)
        return figure
