"""The figure of a diagnosis: what each layer keeps and uses, and the eigenvalues of the kernel."""

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ntksap.analysis import Diagnosis, KernelChange
from ntksap.report.figures.style import STYLE
from ntksap.runs import DENSE


def diagnosis_figure(found: Diagnosis, title: str) -> Figure:
    """Draw how many weights each layer keeps, how many of those lie on a path, and the eigenvalues if there are any."""
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
