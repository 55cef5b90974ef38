"""Accuracy against sparsity, and against what a network costs: multiply-adds, weights, measured time."""

import math
from collections.abc import Callable, Sequence

from ntksap.report.charts.chart import Chart, Panel, Trace, axis, file_name, line, once_in_legend, plain
from ntksap.report.experiments import Experiment, sparsity_text
from ntksap.report.figures import Look, looks
from ntksap.report.table import Cell, formatted
from ntksap.runs import DENSE

_HOVER = "%{text}<extra></extra>"


def accuracy_panels(one: Experiment) -> list[Panel]:
    """Return accuracy against sparsity, and, where results hold them, multiply-adds, weights and measured time."""
    costs: list[tuple[str, str, Callable[[Cell], float | None]]] = [
        ("multiply-adds", "multiply-adds of one inference", lambda cell: cell.inference_flops),
        ("weights", "weights kept", lambda cell: one.total if cell.method == DENSE else cell.kept),
        (
            "time of inference",
            "milliseconds for a batch of 64, measured",
            lambda cell: _milliseconds(cell.inference_64),
        ),
        ("time of training", "milliseconds for a step of 64, measured", lambda cell: _milliseconds(cell.step_64)),
    ]
    panels = [Panel("sparsity", [_by_sparsity(one)])]
    for choice, title, cost in costs:
        if (chart := _by_cost(one, choice, title, cost)) is not None:
            panels.append(Panel(choice, [chart]))
    return panels


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _by_sparsity(one: Experiment) -> Chart:
    """Return means at each sparsity; error bars stand side by side where they would hide each other."""
    pruned = [cell for cell in one.table if cell.method != DENSE]
    sparsities = sorted({cell.sparsity for cell in pruned})
    look = looks(list(dict.fromkeys(cell.method for cell in pruned)))
    decades = math.log10((1 - sparsities[0]) / (1 - sparsities[-1])) if len(sparsities) > 1 else 0.0
    apart = 10 ** ((0.06 * decades or 0.02) / len(look)) if any(cell.std for cell in pruned) and look else 1.0
    traces = []
    for place, method in enumerate(look):
        shift = apart ** ((len(look) - 1) / 2 - place)
        traces.append(_method(pruned, method, look[method], _shifted(shift)))
    ends = [1 - s for s in sparsities] or [1.0]
    ends = [ends[0] * 10 ** (0.05 * decades or 0.1), *ends, ends[-1] / 10 ** (0.05 * decades or 0.1)]
    for cell in one.table:
        if cell.method == DENSE:
            traces += _dense_line(cell, ends)
    layout = {
        "xaxis": axis(
            "sparsity (density on a logarithmic scale)",
            type="log",
            range=[math.log10(ends[0]), math.log10(ends[-1])],
            tickvals=[1 - s for s in sparsities],
            ticktext=[sparsity_text(s) for s in sparsities],
            showgrid=False,
        ),
        "yaxis": axis("test accuracy (%)"),
    }
    title = f"Test accuracy against sparsity, {one.title}"
    file = file_name("accuracy", one.title)
    return Chart(title, f"{title}.{_bars(one.table)}", file, once_in_legend(traces), layout, 360)


def _by_cost(one: Experiment, choice: str, title: str, cost: Callable[[Cell], float | None]) -> Chart | None:
    costs = {(cell.method, cell.sparsity): value for cell in one.table if (value := cost(cell))}
    shown = [cell for cell in one.table if (cell.method, cell.sparsity) in costs]
    if not any(cell.method != DENSE for cell in shown):
        return None

    def x(cell: Cell) -> float:
        return costs[cell.method, cell.sparsity]

    methods = list(dict.fromkeys(cell.method for cell in shown))
    look = looks([method for method in methods if method != DENSE])
    traces = [_method(shown, method, look.get(method), x) for method in methods]
    front = pareto_front([(x(cell), cell.mean) for cell in shown])
    rings: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "Pareto front",
        "legendgroup": "Pareto front",
        "x": [cheap for cheap, _ in front],
        "y": [accurate for _, accurate in front],
        "line": {"color": "soft", "width": 1, "dash": "dot", "shape": "hv"},
        "marker": {"color": "soft", "symbol": "circle-open", "size": 15},
        "hoverinfo": "skip",
    }
    layout = {
        "xaxis": axis(title, type="log", dtick="D2", tickformat="~s", showgrid=False),
        "yaxis": axis("test accuracy (%)"),
    }
    name = f"Test accuracy against {choice}, {one.title}"
    caption = f"{name}.{_bars(one.table)} Rings: nothing that costs as little is more accurate, by means."
    file = file_name("accuracy", choice, one.title)
    return Chart(name, caption, file, once_in_legend([*traces, rings]), layout, 360)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (cost, accuracy) pairs that no other beats in one and matches or beats in the other, sorted by cost.

    >>> pareto_front([(1, 5.0), (2, 4.0), (2, 6.0), (3, 6.0)])
    [(1, 5.0), (2, 6.0)]
    """
    front: list[tuple[float, float]] = []
    for cost, accuracy in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not front or accuracy > front[-1][1]:
            front.append((cost, accuracy))
    return front


def _shifted(factor: float) -> Callable[[Cell], float]:
    return lambda cell: factor * (1 - cell.sparsity)


def _method(table: Sequence[Cell], method: str, look: Look | None, x: Callable[[Cell], float]) -> Trace:
    row = sorted((cell for cell in table if cell.method == method), key=lambda cell: cell.sparsity)
    made = line(
        method,
        look,
        [x(cell) for cell in row],
        [cell.mean for cell in row],
        text=[_said(cell) for cell in row],
        hovertemplate=_HOVER,
    )
    if any(cell.std for cell in row):
        made["error_y"] = {"array": [cell.std for cell in row], "thickness": 1, "width": 3}
    return made


def _dense_line(cell: Cell, ends: Sequence[float]) -> list[Trace]:
    """Return the dense network across the chart, its standard deviation shaded."""
    across = line(DENSE, None, ends, [cell.mean] * len(ends), text=[_said(cell)] * len(ends), hovertemplate=_HOVER)
    upper, lower = cell.mean + cell.std, cell.mean - cell.std
    band = line(DENSE, None, [ends[0], ends[-1], ends[-1], ends[0]], [upper, upper, lower, lower], fill="toself")
    band |= {"mode": "none", "fillcolor": "shade", "hoverinfo": "skip"}
    return [{**across, "mode": "lines"}, *([band] if cell.std else [])]


def _said(cell: Cell) -> str:
    name = plain(cell.method) if cell.method == DENSE else f"{plain(cell.method)} at {sparsity_text(cell.sparsity)}"
    return f"{name}: {formatted(cell)} %<br>{'1 seed' if cell.seeds == 1 else f'mean ± std of {cell.seeds} seeds'}"


def _bars(table: Sequence[Cell]) -> str:
    return " Bars are one standard deviation over seeds." if any(cell.seeds > 1 for cell in table) else ""
