"""Learning curves and spectra: many lines over one axis, as SVG, with the values that a pointer asks for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ntksap.report.plot import Axis, Look, frame, joined, legend, marker
from ntksap.report.svg import Scale, drawing, log_ticks, raised, spread, tag, ticks

_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT, _BELOW = 430.0, 62.0, 14.0, 12.0, 230.0, 52.0


@dataclass(frozen=True)
class Curve:
    """One line: whose it is (for the legend), which one exactly (for the pointer), and its points."""

    method: str
    name: str
    look: Look
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Quantity:
    """What an axis shows."""

    name: str
    unit: str = ""
    log: bool = False
    whole: bool = False

    @property
    def title(self) -> str:
        """Name and unit, as an axis is labelled."""
        return f"{self.name} ({self.unit.strip()})" if self.unit else self.name

    def text(self, value: float) -> str:
        """Return a value with its unit, in four digits."""
        return f"{value:.4g}{self.unit}"

    def axis(self, values: Sequence[float], start: float, end: float, margin: float = 0.0) -> Axis:
        """Return an axis over all ``values``."""
        if self.log:
            low, high = (
                10.0 ** edge(math.log10(v)) for edge, v in ((math.floor, min(values)), (math.ceil, max(values)))
            )
            high = high if high > low else 10 * low
            shown = [(value, f"10{raised(round(math.log10(value)))}") for value in log_ticks(low, high)]
        else:
            low, high = spread(values, margin) if margin else (min(values), max(values))
            steps = [value for value in ticks(low, high) if not self.whole or value.is_integer()]
            shown = [(value, f"{value:g}") for value in steps]
        return Axis(Scale(low, high, start, end, self.log), self.title, shown)


@dataclass(frozen=True)
class CurveChart:
    """A drawn chart, and its values for the page's script: one entry per line, in the order they are drawn."""

    svg: Markup
    values: dict[str, Any]


def curve_chart(
    title: str, curves: Sequence[Curve], x: Quantity, y: Quantity, among: Sequence[Curve] = ()
) -> CurveChart:
    """Draw curves on axes that have room for those ``among`` which they are to be compared, too."""
    everything = [point for curve in [*curves, *among] for point in curve.points]
    bottom = _TOP + _HEIGHT
    across = x.axis([px for px, _ in everything], _LEFT, _WIDTH - _RIGHT)
    up = y.axis([py for _, py in everything], bottom, _TOP, margin=0.05)
    ordered = sorted(curves, key=lambda curve: curve.method == "ntk-sap")  # drawn last, so on top
    lines = [_line(curve, across.scale, up.scale, x, y) for curve in ordered]
    entries = list({curve.method: curve.look for curve in curves}.items())
    shown, height = legend(entries, 14, bottom + _BELOW, _WIDTH - 14)
    svg = drawing(
        _WIDTH, bottom + _BELOW + height + 4, title, frame(across, up), tag("g", *lines, class_="marks"), shown
    )
    values = {
        "x": x.name,
        "y": y.name,
        "unit": y.unit,
        "curves": [
            {"name": c.name, "x": [px for px, _ in c.points], "y": [float(f"{py:.6g}") for _, py in c.points]}
            for c in ordered
        ],
    }
    return CurveChart(svg, values)


def _line(curve: Curve, across: Scale, up: Scale, x: Quantity, y: Quantity) -> Markup:
    points = [(across(px), up(py)) for px, py in curve.points]
    last_x, last_y = curve.points[-1]
    text = f"{curve.name}: {y.name} {y.text(last_y)} at {x.name} {x.text(last_x)}"
    end_x, end_y = points[-1]
    if curve.look.marker is None:
        end = tag("circle", cx=end_x, cy=end_y, r=3, fill=curve.look.colour, class_="ink-area")
    else:
        end = marker(curve.look.marker, end_x, end_y, curve.look.colour, 3.6)
    line = tag("polyline", points=joined(points), **{**curve.look.stroke(), "stroke_width": min(curve.look.width, 2)})
    return tag("g", tag("title", text), line, end, class_="mark curve")
