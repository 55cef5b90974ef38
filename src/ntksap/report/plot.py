"""What the line charts share: how a method looks, axes, legends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ntksap.methods import METHODS
from ntksap.report.figures import colour_of
from ntksap.report.svg import GRID, INK, SOFT, Scale, label, shortened, tag, text_width
from ntksap.runs import DENSE

# corners (0: a circle), degrees by which they are turned, how far out the points between them are (1: none)
_SHAPES = (
    (0, 0.0, 1.0),
    (4, 45.0, 1.0),
    (4, 0.0, 1.0),
    (3, 0.0, 1.0),
    (3, 180.0, 1.0),
    (5, 0.0, 0.45),
    (6, 0.0, 1.0),
    (4, 0.0, 0.5),
)
_DASHES = {"shuffle": "6 3", "reinit": "8 3 2 3", "invert": "2 3"}


@dataclass(frozen=True)
class Look:
    """How a method is drawn: colour, dashes for its sanity checks, a marker so that colour is not all."""

    colour: str
    dash: str | None
    width: float
    marker: int | None

    def stroke(self) -> dict[str, str | float | None]:
        """Return the attributes of its line; the dense reference takes the colour of text."""
        ink = self.marker is None
        return {
            "stroke": self.colour,
            "stroke_width": self.width,
            "stroke_dasharray": self.dash,
            "stroke_linejoin": "round",
            "fill": "none",
            "class_": "line ink-line" if ink else "line",
        }


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return the look of each method, and of the dense one; a method of the table looks the same in every figure."""
    known = list(METHODS)
    made = {
        method: Look(
            colour_of(method, index),
            _DASHES.get(method.rpartition(" (")[2].rstrip(")")),
            2.6 if method == "ntk-sap" else 1.6,
            known.index(method) if method in known else len(known) + index,
        )
        for index, method in enumerate(methods)
    }
    return {**made, DENSE: Look(INK, "6 4", 1.4, None)}


def marker(index: int, x: float, y: float, colour: str, size: float = 4.2) -> Markup:
    """Return the shape number ``index``, again from the first when there are no more."""
    corners, turn, inner = _SHAPES[index % len(_SHAPES)]
    style: dict[str, str | float | None] = {"fill": colour, "stroke": "#ffffff", "stroke_width": 0.8, "class_": "dot"}
    if not corners:
        return tag("circle", cx=x, cy=y, r=size, **style)
    steps = corners if inner == 1.0 else 2 * corners
    size *= 1.3 if inner == 1.0 else 1.6  # shapes of different kinds look equally large
    points = []
    for step in range(steps):
        angle = math.radians(turn + 360 * step / steps)
        radius = size if step % 2 == 0 or inner == 1.0 else size * inner
        points.append((x + radius * math.sin(angle), y - radius * math.cos(angle)))
    return tag("polygon", points=joined(points), **style)


def joined(points: Sequence[tuple[float, float]]) -> str:
    """Return points as SVG writes them."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True)
class Axis:
    """One axis: its scale, its title, and its ticks with their texts."""

    scale: Scale
    title: str
    ticks: Sequence[tuple[float, str]]


def frame(x: Axis, y: Axis, room: float = 0.0) -> Markup:
    """Return grid lines, tick labels and titles; there is ``room`` between the sides and the ends of the x scale."""
    left, right, bottom, top = x.scale.start - room, x.scale.end + room, y.scale.start, y.scale.end
    parts = []
    for value, text in y.ticks:
        at = y.scale(value)
        parts.append(tag("line", x1=left, x2=right, y1=at, y2=at, stroke=GRID, class_="grid"))
        parts.append(label(text, left - 8, at + 4, soft=True, text_anchor="end"))
    last = -math.inf
    for value, text in x.ticks:
        at = x.scale(value)
        parts.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 5, stroke=SOFT, class_="axis"))
        if at - text_width(text) / 2 > last:  # labels that would run into each other are left out
            parts.append(label(text, at, bottom + 19, soft=True, text_anchor="middle"))
            last = at + text_width(text) / 2
    parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, stroke=SOFT, class_="axis"))
    parts.append(label(x.title, (left + right) / 2, bottom + 39, text_anchor="middle"))
    upright = f"translate(14 {(top + bottom) / 2:.1f}) rotate(-90)"
    parts.append(label(y.title, 0, 0, text_anchor="middle", transform=upright))
    return Markup("").join(parts)


def legend(entries: Sequence[tuple[str, Look]], x: float, y: float, width: float) -> tuple[Markup, float]:
    """Return a legend in as many columns as fit, and how high it is."""
    if not entries:
        return Markup(""), 0.0
    column = max(text_width(shortened(name)) for name, _ in entries) + 40
    columns = max(1, int(width // column))
    parts = []
    for index, (name, look) in enumerate(entries):
        left, at = x + (index % columns) * column, y + (index // columns) * 20 + 10
        parts.append(tag("line", x1=left, x2=left + 24, y1=at, y2=at, **look.stroke()))
        if look.marker is not None:
            parts.append(marker(look.marker, left + 12, at, look.colour))
        parts.append(label(shortened(name), left + 31, at + 4))
    return tag("g", *parts, class_="marks legend"), 20.0 * math.ceil(len(entries) / columns)
