"""Figures in files: accuracy against sparsity, and the densities of layers."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from ntksap.pruning import Masks
from ntksap.report.figures.style import STYLE, looks, sparsity_axis
from ntksap.report.table import Cell
from ntksap.runs import DENSE


def accuracy_figure(table: Sequence[Cell], title: str, quantity: str = "test accuracy (%)") -> Figure:
    """Draw accuracy against sparsity (density on a logarithmic axis), the dense net as a line.

    Std over seeds is shaded, or a bar where a method has one sparsity only; bars of one sparsity stand side by side.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.subplots()
        for cell in table:
            if cell.method == DENSE:
                axes.axhline(cell.mean, color="black", linestyle=(0, (5, 3)), linewidth=1.2, label=DENSE)
                axes.axhspan(cell.mean - cell.std, cell.mean + cell.std, color="black", alpha=0.08, linewidth=0)
        methods = list(dict.fromkeys(cell.method for cell in table if cell.method != DENSE))
        sparsities = sorted({cell.sparsity for cell in table if cell.method != DENSE})
        beside = len(sparsities) == 1 and any(cell.std for cell in table)
        apart = 1.5 ** (1 / len(methods)) if beside and methods else 1.0
        for place, (method, look) in enumerate(looks(methods).items()):
            shift = apart ** ((len(methods) - 1) / 2 - place)
            row = sorted((cell for cell in table if cell.method == method), key=lambda cell: cell.sparsity)
            density = [shift * (1 - cell.sparsity) for cell in row]
            mean, std = [cell.mean for cell in row], [cell.std for cell in row]
            axes.plot(
                density,
                mean,
                color=look.colour,
                linestyle=look.dash[1],
                marker=look.marker[1],
                markersize=5,
                linewidth=look.width,
                zorder=3 if method == "ntk-sap" else 2,
                label=textwrap.fill(method, 34, break_on_hyphens=False),
            )
            if len(row) == 1 and row[0].std:
                axes.errorbar(density, mean, std, color=look.colour, capsize=3, linewidth=1)
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            axes.fill_between(density, low, high, color=look.colour, alpha=0.15, linewidth=0)
        sparsity_axis(axes, sparsities)
        axes.set_ylabel(quantity)
        axes.set_title(title, loc="left")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
        return figure


def densities_figure(masks: Mapping[str, Masks], title: str) -> Figure:
    """Draw the density of each layer, from input to output, one line per method."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        axes = figure.subplots()
        names: list[str] = []
        for (method, one), look in zip(masks.items(), looks(list(masks)).values(), strict=True):
            names = [name.removesuffix(".weight") for name in one]
            share = [100 * layer["kept"] / layer["total"] for layer in one.layers()]
            axes.plot(share, color=look.colour, marker=look.marker[1], label=method)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
        axes.set_ylabel("weights kept")
        axes.set_title(title, loc="left")
        axes.legend(frameon=False)
        return figure
