"""Figures of spectra during training: a panel per epoch with all methods, or a panel per method with all epochs."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntksap.report.figures.spectra import ZERO
from ntksap.report.figures.style import STYLE, colour_of
from ntksap.runs import DENSE

_LABELS = {"eigenvalues": "eigenvalue", "relative_eigenvalues": "eigenvalue ÷ mean of the smallest 10 %"}


def epochs_figure(found: Mapping[str, Mapping[str, Any]], key: str, title: str) -> Figure:
    """Draw a panel per epoch: one line per method, the dense network black."""
    epochs = [one["epoch"] for one in next(iter(found.values()))["epochs"]]
    with mpl.rc_context(STYLE):
        figure, grid = _grid(len(epochs))
        for place, (axes, epoch) in enumerate(zip(grid, epochs, strict=False)):
            for index, (method, spectra) in enumerate(found.items()):
                colour = "black" if method == DENSE else colour_of(method, index)
                _draw(axes, spectra["epochs"][place][key], colour, method)
            axes.set_title(f"epoch {epoch}", fontsize=10)
        return _finished(figure, grid, key, title)


def methods_figure(found: Mapping[str, Mapping[str, Any]], key: str, title: str) -> Figure:
    """Draw a panel per method: one line per epoch, the later the brighter."""
    with mpl.rc_context(STYLE):
        figure, grid = _grid(len(found))
        for axes, (method, spectra) in zip(grid, found.items(), strict=False):
            for index, one in enumerate(spectra["epochs"]):
                shade = mpl.colormaps["viridis"](0.9 * index / max(len(spectra["epochs"]) - 1, 1))
                _draw(axes, one[key], shade, f"epoch {one['epoch']}")
            axes.set_title(method, fontsize=10)
        return _finished(figure, grid, key, title)


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    columns = 2 if count in (2, 4) else min(count, 3)
    lines = -(-count // columns)
    figure = Figure(figsize=(1.6 + 3.6 * columns, 0.6 + 2.9 * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten())
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _draw(axes: Axes, values: list[float], colour: Any, label: str) -> None:
    shown = [value for value in values if value > ZERO * values[0]]
    axes.plot(range(1, len(shown) + 1), shown, color=colour, linewidth=1.5, label=label)


def _finished(figure: Figure, grid: list[Axes], key: str, title: str) -> Figure:
    for axes in grid:
        axes.set_yscale("log")
        axes.label_outer()
    figure.supxlabel("index of the eigenvalue", fontsize=10)
    figure.supylabel(_LABELS[key], fontsize=10)
    handles = {str(line.get_label()): line for axes in grid for line in axes.get_lines()}
    figure.legend(list(handles.values()), list(handles), loc="outside right center", frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left")
    return figure
