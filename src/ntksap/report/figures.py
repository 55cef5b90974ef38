"""Figures."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from ntksap._base import unknown, write_atomically
from ntksap.analysis import Diagnosis, KernelChange
from ntksap.pruning import Masks
from ntksap.report.table import Cell
from ntksap.runs import DENSE

# The paper's colours, a little darker where they would not show on white.
COLOURS = {
    "ntk-sap": "#d62728",
    "ntk-sap-s": "#ff9896",
    "snip": "#1f5fd0",
    "iterative-snip": "#c9a400",
    "force": "#8c564b",
    "grasp": "#2ca02c",
    "synflow": "#17becf",
    "magnitude": "#e045c8",
    "random": "#8a8a8a",
}
_OTHERS = ("#7f4fc9", "#f08a24", "#3b7a57", "#5b6770")
_MARKERS = "osD^vP*X<>ph"
_SANITY_STYLES = {"shuffle": "--", "reinit": "-.", "invert": ":"}
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 120,
    "svg.hashsalt": "ntksap",  # the same figure gives the same file
}


def colour_of(method: str, index: int = 0) -> str:
    """Return the colour of a method; its sanity checks share it."""
    return COLOURS.get(method.split(" ")[0], _OTHERS[index % len(_OTHERS)])


def save_figure(figure: Figure, folder: Path, name: str) -> list[str]:
    """Write a figure as PNG and SVG (without a date, so that the same figure gives the same file); return the names."""
    names = [f"{name}.png", f"{name}.svg"]
    for file in names:
        write_figure(figure, folder / file)
    return names


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file of the kind that its name says, all of it or nothing."""
    kind, known = path.suffix.lower().lstrip("."), figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise unknown("kind of picture", kind, known)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, drawn.getvalue())


def accuracy_figure(table: Sequence[Cell], title: str, quantity: str = "test accuracy (%)") -> Figure:
    """Draw accuracy against sparsity (density on a logarithmic axis), std shaded, the dense net as a line."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.subplots()
        for cell in table:
            if cell.method == DENSE:
                axes.axhline(cell.mean, color="black", linestyle=(0, (5, 3)), linewidth=1.2, label=DENSE)
                axes.axhspan(cell.mean - cell.std, cell.mean + cell.std, color="black", alpha=0.08, linewidth=0)
        methods = list(dict.fromkeys(cell.method for cell in table if cell.method != DENSE))
        for index, method in enumerate(methods):
            row = sorted((cell for cell in table if cell.method == method), key=lambda cell: cell.sparsity)
            density = [1 - cell.sparsity for cell in row]
            mean, std = [cell.mean for cell in row], [cell.std for cell in row]
            check = method.partition(" (")[2].rstrip(")")
            axes.plot(
                density,
                mean,
                color=colour_of(method, index),
                linestyle=_SANITY_STYLES.get(check, "-"),
                marker=_MARKERS[index % len(_MARKERS)],
                markersize=5,
                linewidth=2.4 if method == "ntk-sap" else 1.4,
                zorder=3 if method == "ntk-sap" else 2,
                label=method,
            )
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            axes.fill_between(density, low, high, color=colour_of(method, index), alpha=0.15, linewidth=0)
        sparsity_axis(axes, sorted({cell.sparsity for cell in table if cell.method != DENSE}))
        axes.set_ylabel(quantity)
        axes.set_title(title, loc="left")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
        return figure


def densities_figure(masks: Mapping[str, Masks], title: str) -> Figure:
    """Draw the density of each layer, from input to output, one line per method."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        axes = figure.subplots()
        names: list[str] = []
        for index, (method, one) in enumerate(masks.items()):
            names = [name.removesuffix(".weight") for name in one]
            share = [100 * layer["kept"] / layer["total"] for layer in one.layers()]
            axes.plot(share, color=colour_of(method, index), marker=_MARKERS[index % len(_MARKERS)], label=method)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
        axes.set_ylabel("weights kept")
        axes.set_title(title, loc="left")
        axes.legend(frameon=False)
        return figure


def diagnosis_figure(found: Diagnosis, title: str) -> Figure:
    """Draw how many weights each layer keeps, how many of those lie on a path, and the eigenvalues if it has them."""
    with mpl.rc_context(STYLE):
        names = [layer.name.removesuffix(".weight") for layer in found.layers]
        high = 1.2 + 0.24 * len(names)
        if isinstance(found.kernel, KernelChange):
            figure = Figure(figsize=(10.8, max(high, 3.4)), layout="constrained")
            axes, beside = figure.subplots(1, 2, width_ratios=(2, 1))
            _kernel_axes(beside, found.kernel)
        else:
            figure = Figure(figsize=(7.2, high), layout="constrained")
            axes = figure.subplots()
        places = range(len(names))
        kept = [100 * layer.kept / layer.total for layer in found.layers]
        used = [100 * layer.used / layer.total for layer in found.layers]
        axes.barh(places, kept, color="#f2b8a0", label="kept")
        axes.barh(places, used, color="#1f5fd0", height=0.5, label="kept and on a path from input to output")
        for place, layer in zip(places, found.layers, strict=True):
            note = "nothing left" if layer.kept == 0 else f"{layer.kept:,} of {layer.total:,}"
            axes.annotate(
                note, (max(kept[place], 0.01), place), (4, 0), textcoords="offset points", va="center", fontsize=7
            )
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xlim(0, 400)
        axes.set_xticks([0, 0.1, 1, 10, 100], ["0", "0.1 %", "1 %", "10 %", "100 %"])
        axes.set_yticks(places, names, fontsize=8)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title(title, loc="left", fontsize=10)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        return figure


def _kernel_axes(axes: Axes, change: KernelChange) -> None:
    for kernel, name, colour in ((change.dense, DENSE, "black"), (change.pruned, "pruned", "#d62728")):
        values = kernel.eigenvalues[: kernel.rank].tolist()  # zeros cannot be drawn
        axes.plot(range(1, len(values) + 1), values, color=colour, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("index of the eigenvalue")
    axes.set_title(f"NTK eigenvalues, {change.dense.num_inputs} noise inputs", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def sparsity_axis(axes: Axes, sparsities: Sequence[float]) -> None:
    """Label an axis of densities by sparsities, rising to the right."""
    if len(sparsities) == 1:  # one place has no extent of its own
        axes.set_xlim((1 - sparsities[0]) / 2, (1 - sparsities[0]) * 2)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.xaxis.set_major_locator(FixedLocator([1 - s for s in sparsities]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda density, _: f"{100 * (1 - density):.4g} %")
    axes.set_xlabel("sparsity (density on a logarithmic scale)")
