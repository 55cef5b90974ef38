"""The density of each layer under each method, as heat maps."""

import math
import statistics
from collections.abc import Mapping, Sequence

from ntksap.report.charts.chart import Chart, Panel, Trace, axis, broken, file_name, plain
from ntksap.report.experiments import Experiment, sparsity_text

Rows = Mapping[str, Mapping[str, float]]  # densities by layer, for each method
_NUMBERS_UP_TO = 24
"""Cells of deeper networks are too narrow for a number."""


def density_panels(one: Experiment) -> list[Panel]:
    """Return a heat map per sparsity, all on one scale of colours."""
    maps: dict[float, Rows] = {}
    for sparsity in one.sparsities:
        rows: dict[str, dict[str, float]] = {}
        for method in one.methods:
            layers = [run.layers for label, run in one.runs if label == method and run.settings["sparsity"] == sparsity]
            names = dict.fromkeys(name for layer in layers for name in layer)
            mean = {name: statistics.fmean(layer[name] for layer in layers if name in layer) for name in names}
            if mean:
                rows[method] = mean
        if rows:
            maps[sparsity] = rows
    lowest = lowest_density(list(maps.values()))
    return [Panel(sparsity_text(sparsity), [_heat_map(one, sparsity, maps[sparsity], lowest)]) for sparsity in maps]


def lowest_density(maps: Sequence[Rows]) -> float:
    """Return the power of ten below every density that is not zero, so that all heat maps share one scale."""
    found = [density for rows in maps for row in rows.values() for density in row.values() if density > 0]
    return min(0.1, 10.0 ** math.floor(math.log10(min(found, default=0.1)) + 1e-9))


def _heat_map(one: Experiment, sparsity: float, rows: Rows, lowest: float) -> Chart:
    layers = list(dict.fromkeys(layer for row in rows.values() for layer in row))
    numbers = len(layers) <= _NUMBERS_UP_TO
    powers = range(0, round(math.log10(lowest)) - 1, -max(1, -round(math.log10(lowest)) // 4))
    table = [[row.get(layer) for layer in layers] for row in rows.values()]
    heat: Trace = {
        "type": "heatmap",
        "z": [[math.log10(density) if density else None for density in row] for row in table],
        "customdata": [
            [_said(method, layer, row.get(layer)) for layer in layers] for method, row in rows.items()
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "colorscale": "Viridis",
        "zmin": math.log10(lowest),
        "zmax": 0,
        "xgap": 1.5,
        "ygap": 1.5,
        "showlegend": False,
        "colorbar": {
            "orientation": "h", "y": 0, "yanchor": "top", "x": 0, "xanchor": "left", "len": 240, "lenmode": "pixels",
            "thickness": 10, "ypad": 14, "outlinewidth": 0, "tickfont": {"color": "soft"},
            "tickangle": 0, "tickvals": list(powers), "ticktext": [f"{100 * 10.0**power:g} %" for power in powers],
        },
    }  # fmt: skip
    names = [plain(layer.removesuffix(".weight"), 28) for layer in layers]
    methods = [broken(method) for method in rows]
    common = {"showgrid": False, "showline": False, "ticks": "", "fixedrange": True}
    layout = {
        "xaxis": axis("", tickvals=list(range(len(layers))), ticktext=names, side="top", tickangle=-45, **common),
        "yaxis": axis("", tickvals=list(range(len(rows))), ticktext=methods, autorange="reversed", **common),
    }
    choice = sparsity_text(sparsity)
    caption = f"Density of each layer in percent at {choice} sparsity, input to output; mean over seeds."
    height = (
        28 * (len(rows) + "".join(methods).count("<br>")) + round(5 * max(len(name) for name in names)) + 10
    )  # and the names above, slanted
    narrowest = 150 + (34 if numbers else 18) * len(layers)
    data = [heat, *_collapsed(rows, layers), *([_numbers(table, lowest)] if numbers else [])]
    title = f"Layer densities at {choice} sparsity, {one.title}"
    return Chart(title, caption, file_name("densities", one.title, choice), data, layout, height, narrowest)


def _numbers(table: Sequence[Sequence[float | None]], lowest: float) -> Trace:
    """Return the densities as text, dark on the bright half of the colours and white on the dark one."""
    found = [(x, y, density) for y, row in enumerate(table) for x, density in enumerate(row) if density]
    return {
        "type": "scatter",
        "mode": "text",
        "x": [x for x, _, _ in found],
        "y": [y for _, y, _ in found],
        "text": [_percent(density) for _, _, density in found],
        "textfont": {"size": 11, "color": ["#1b1f24" if d > lowest**0.55 else "#ffffff" for _, _, d in found]},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _collapsed(rows: Rows, layers: Sequence[str]) -> list[Trace]:
    """Return crosses where a layer has nothing left, for which no colour is dark enough."""
    names = list(rows)
    found = [(x, y) for y, row in enumerate(rows.values()) for x, layer in enumerate(layers) if row.get(layer) == 0]
    crosses: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "a layer with nothing left",
        "x": [x for x, _ in found],
        "y": [y for _, y in found],
        "marker": {"symbol": "x", "color": "bad", "size": 9},
        "text": [_said(names[y], layers[x], 0.0) for x, y in found],
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": True,
    }
    return [crosses] if found else []


def _said(method: str, layer: str, density: float | None) -> str:
    kept = "no such layer" if density is None else f"{100 * density:.3g} % kept" if density else "nothing kept"
    return f"{plain(method)}, {plain(layer)}: {kept}"


def _percent(density: float) -> str:
    percent = 100 * density
    if percent < 0.01:
        return "&lt;.01"
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}" if percent >= 1 else f"{percent:.2f}"
