"""The node–path figure: how many paths masks leave, against how many channels lie on one."""

import math
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from ntksap.analysis import Diagnosis
from ntksap.report.figures.style import STYLE, looks


def node_path_figure(found: Sequence[tuple[str, Diagnosis]], title: str) -> Figure:
    """Draw the logarithm of the number of paths against effective nodes: output channels that lie on a path.

    ``found`` holds (label, diagnosis) of masks for one network. Those that share a label are joined by a line, from the
    densest to the sparsest, whose sparsities are written beside them. Masks without a path cannot be drawn; a line of
    text below names them.
    """
    lines: dict[str, list[Diagnosis]] = {}
    cut = []
    for label, one in found:
        if isinstance(one.log10_paths, str) or one.log10_paths == -math.inf:
            cut.append(f"{label} at {one.sparsity:.2%}")
        else:
            lines.setdefault(label, []).append(one)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.6, 4.4), layout="constrained")
        axes = figure.subplots()
        for label, look in looks(list(lines)).items():
            points = sorted(lines[label], key=lambda one: one.sparsity)
            places = [one.units[0] for one in points], [one.log10_paths for one in points]
            axes.plot(*places, color=look.colour, marker=look.marker[1], linewidth=look.width, alpha=0.9, label=label)
            ends = list(zip(points, *places, strict=True))
            for one, x, y in (ends[0], ends[-1]) if len(ends) > 1 else ends:
                axes.annotate(
                    f"{100 * one.sparsity:.4g} %",
                    (x, y),
                    (5, -8),
                    textcoords="offset points",
                    fontsize=6.5,
                    color="#555555",
                )
        total = f" (of {found[0][1].units[1]:,})" if found else ""
        axes.set_xlabel(f"effective nodes: output channels that lie on a path{total}")
        axes.set_ylabel("log₁₀ of the number of paths")
        axes.set_title(title, loc="left", fontsize=10)
        if lines:
            axes.legend(frameon=False, fontsize=8)
        if cut:
            figure.supxlabel(f"not shown, as no path could be counted: {', '.join(cut)}", fontsize=8)
        return figure
