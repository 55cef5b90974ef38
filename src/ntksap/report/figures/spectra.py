"""The figure of spectra: eigenvalue against index, pruned nets beside the dense one."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntksap.report.figures.style import STYLE, colour_of
from ntksap.report.run_files import Spectrum
from ntksap.runs import DENSE

_PANELS_PER_ROW = 3
ZERO = 1e-12
"""An eigenvalue below this share of the largest is zero up to rounding, and not drawn."""


def spectrum_figure(spectra: Sequence[Spectrum], title: str) -> Figure:
    """Draw eigenvalue against index on a logarithmic scale: one panel per sparsity, the dense net black in each."""
    dense = [one for one in spectra if one.method == DENSE]
    pruned = [one for one in spectra if one.method != DENSE]
    methods = list(dict.fromkeys(one.method for one in pruned))
    sparsities = sorted({one.sparsity for one in pruned})
    columns = 2 if len(sparsities) == 4 else min(len(sparsities), _PANELS_PER_ROW)
    lines = -(-len(sparsities) // columns)
    lowest = ZERO * max(one.eigenvalues[0] for one in spectra)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(6.8, 1.6 + 3.9 * columns), max(4.4, 0.6 + 3.2 * lines)), layout="constrained")
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for place, (axes, sparsity) in enumerate(zip(grid, sparsities, strict=False)):
            axes.set_yscale("log")
            for one in pruned:
                if one.sparsity == sparsity:
                    wide = 2.4 if one.method == "ntk-sap" else 1.4
                    _draw(axes, one, lowest, colour_of(one.method, methods.index(one.method)), wide)
            for one in dense:
                _draw(axes, one, lowest, "black", 1.6)
            axes.set_title(f"sparsity {100 * sparsity:.4g} %", fontsize=10)
            if place + columns >= len(sparsities):  # nothing below it
                axes.set_xlabel("index of the eigenvalue")
                axes.xaxis.set_tick_params(labelbottom=True)
            if place % columns == 0:
                axes.set_ylabel("eigenvalue")
        for axes in grid[len(sparsities) :]:
            axes.set_visible(False)
        handles = {str(line.get_label()): line for axes in grid for line in axes.get_lines()}
        figure.legend(list(handles.values()), list(handles), loc="outside right center", frameon=False, fontsize=9)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
        return figure


def _draw(axes: Axes, one: Spectrum, lowest: float, colour: str, width: float) -> None:
    """Draw the eigenvalues above ``lowest``; a net that has none still gets its line in the legend."""
    values = [value for value in one.eigenvalues if value > lowest]
    axes.plot(range(1, len(values) + 1), values, color=colour, linewidth=width, label=one.method)


def during_figure(found: dict[str, Any]) -> Figure:
    """Draw eigenvalue against index at each epoch: as they are, and divided by the mean of the smallest tenth."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.8), layout="constrained")
        shades = mpl.colormaps["viridis"]
        count = len(found["epochs"])
        for axes, key, label in zip(
            figure.subplots(1, 2),
            ("eigenvalues", "relative_eigenvalues"),
            ("eigenvalue", "eigenvalue ÷ mean of the smallest 10 %"),
            strict=True,
        ):
            for index, one in enumerate(found["epochs"]):
                values = [value for value in one[key] if value > ZERO * one[key][0]]
                colour = shades(0.9 * index / max(count - 1, 1))
                axes.plot(range(1, len(values) + 1), values, color=colour, label=f"epoch {one['epoch']}")
            axes.set_yscale("log")
            axes.set_xlabel("index of the eigenvalue")
            axes.set_ylabel(label)
        axes.legend(frameon=False, fontsize=8)
        figure.suptitle(f"NTK during training: {found['method']} at {found['sparsity']:.2%}", x=0.01, ha="left")
        return figure
