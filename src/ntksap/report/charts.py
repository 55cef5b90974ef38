"""Accuracy against sparsity, as SVG."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ntksap.report.experiments import sparsity_text
from ntksap.report.plot import Axis, Look, frame, joined, legend, marker
from ntksap.report.svg import INK, Scale, drawing, shortened, spread, tag, text_width, ticks
from ntksap.report.table import Cell, formatted
from ntksap.runs import DENSE

_LEFT, _TOP, _BELOW = 58.0, 14.0, 52.0


def accuracy_chart(table: Sequence[Cell], title: str, look: Mapping[str, Look], *, narrow: bool = False) -> Markup:
    """Draw test accuracy against sparsity, std shaded, the dense network dashed.

    ``narrow`` is for telephones: text keeps its size and the legend stands below.
    """
    methods = list(dict.fromkeys(cell.method for cell in table if cell.method != DENSE))
    entries = [(name, look[name]) for name in [*methods, *([DENSE] if any(c.method == DENSE for c in table) else [])]]
    aside = 0.0 if narrow else max(text_width(shortened(name)) for name, _ in entries) + 64
    width, plot_height = (380.0, 250.0) if narrow else (860.0, 360.0)
    right, bottom = width - aside - (12 if narrow else 8), _TOP + plot_height
    room = 16.0 if narrow else 30.0
    densities = [1 - cell.sparsity for cell in table if cell.method != DENSE] or [1.0]
    x = Scale(max(densities), min(densities), _LEFT + room, right - room, log=True)
    low, high = spread([cell.mean + sign * cell.std for cell in table for sign in (-1, 1)])
    low, high = max(low, -1.5), min(high, 101.5)  # no share is beyond 0 or 100 %, but its marker reaches there
    y = Scale(low, high, bottom, _TOP)
    sparsities = sorted({cell.sparsity for cell in table if cell.method != DENSE})
    parts = [
        frame(
            Axis(x, "sparsity (density on a logarithmic scale)", [(1 - s, sparsity_text(s)) for s in sparsities]),
            Axis(y, "test accuracy (%)", [(value, f"{value:g}") for value in ticks(max(low, 0), min(high, 100))]),
            room,
        )
    ]
    parts += [_dense(cell, look[DENSE], y, _LEFT, right) for cell in table if cell.method == DENSE]
    for method in sorted(methods, key=lambda name: name == "ntk-sap"):  # drawn last, so on top
        parts.append(_method([cell for cell in table if cell.method == method], look[method], x, y))
    at = (_LEFT, bottom + _BELOW) if narrow else (right + 26, _TOP)
    shown, height = legend(entries, *at, width - at[0])
    return drawing(
        width,
        bottom + _BELOW + (height + 6 if narrow else 0),
        f"Test accuracy against sparsity: {title}",
        *parts,
        shown,
        class_="narrow" if narrow else "wide",
    )


def _dense(cell: Cell, look: Look, y: Scale, left: float, right: float) -> Markup:
    text = f"dense: {formatted(cell)} % {_seeds(cell)}"
    upper, lower = y(cell.mean + cell.std), y(cell.mean - cell.std)
    area: dict[str, str | float | None] = {"fill": INK, "fill_opacity": 0.08, "class_": "ink-area"}
    band = tag("rect", x=left, width=right - left, y=upper, height=lower - upper, **area)
    line = tag("line", x1=left, x2=right, y1=y(cell.mean), y2=y(cell.mean), **look.stroke())
    target = tag("line", x1=left, x2=right, y1=y(cell.mean), y2=y(cell.mean), stroke="transparent", stroke_width=9)
    return tag("g", tag("title", text), band, line, target, class_="mark")


def _method(row: list[Cell], look: Look, x: Scale, y: Scale) -> Markup:
    points = [(x(1 - cell.sparsity), y(cell.mean)) for cell in row]
    upper = [(x(1 - cell.sparsity), y(cell.mean + cell.std)) for cell in row]
    lower = [(x(1 - cell.sparsity), y(cell.mean - cell.std)) for cell in row]
    parts = []
    if any(cell.std for cell in row):
        parts.append(tag("polygon", points=joined([*upper, *lower[::-1]]), fill=look.colour, fill_opacity=0.15))
    parts.append(tag("polyline", points=joined(points), **look.stroke()))
    for cell, (at_x, at_y) in zip(row, points, strict=True):
        text = f"{cell.method} at {sparsity_text(cell.sparsity)}: {formatted(cell)} % {_seeds(cell)}"
        target = tag("circle", cx=at_x, cy=at_y, r=10, fill="transparent")  # easier to hit than the marker
        shape = marker(look.marker or 0, at_x, at_y, look.colour, 5)
        parts.append(tag("g", tag("title", text), target, shape, class_="mark"))
    return tag("g", *parts, class_="marks")


def _seeds(cell: Cell) -> str:
    return "(1 seed)" if cell.seeds == 1 else f"(mean ± std of {cell.seeds} seeds)"
