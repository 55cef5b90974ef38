"""The density of each layer under each method, as an SVG heat map."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.colors import to_hex

from ntksap.report.svg import GRID, INK, Scale, drawing, label, log_ticks, shortened, tag, text_width

_COLLAPSED = "#c8102e"
_HEIGHT, _ROOM = 28.0, 860.0


def heat_map(title: str, rows: Mapping[str, Mapping[str, float]], lowest: float) -> Markup:
    """Draw methods × layers; colour is density on a logarithmic scale from ``lowest`` to 1.

    A cross is a layer with nothing left. ``rows`` are densities by layer for each method, layers from input to output.
    """
    layers = list(dict.fromkeys(layer for row in rows.values() for layer in row))
    names = [shortened(layer.removesuffix(".weight"), 28) for layer in layers]
    left = max(text_width(shortened(method)) for method in rows) + 12
    cell = min(76.0, max(20.0, (_ROOM - left - 40) / len(layers)))
    slant = max(text_width(name, 11) for name in names)
    top = 8 + slant * 0.72 + 8
    bottom = top + _HEIGHT * len(rows)
    # slanted names of the last layers reach beyond the last column
    width = max(left + cell * len(layers) + max(8.0, slant * 0.72 - cell / 2 + 12), left + 450)
    parts = []
    for index, name in enumerate(names):
        at = f"translate({left + cell * (index + 0.5):.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(label(name, 0, 0, soft=True, transform=at, font_size=11))
    for line, (method, row) in enumerate(rows.items()):
        y = top + _HEIGHT * line
        parts.append(label(shortened(method), left - 10, y + _HEIGHT / 2 + 4, text_anchor="end"))
        parts += [
            _cell(f"{method}, {layer}", row[layer], left + cell * column, y, cell, lowest)
            for column, layer in enumerate(layers)
            if layer in row
        ]
    return drawing(width, bottom + 62, title, *parts, _scale(left, bottom + 22, lowest), class_="heat")


def _colour(density: float, lowest: float) -> tuple[float, float, float]:
    share = 1.0 if lowest >= 1 else 1 - math.log(max(density, lowest)) / math.log(lowest)
    red, green, blue, _ = colormaps["viridis"](share)
    return red, green, blue


def _cell(name: str, density: float, x: float, y: float, width: float, lowest: float) -> Markup:
    title = tag("title", f"{name}: {'nothing kept' if density == 0 else f'{100 * density:.3g} % kept'}")
    box = {"x": x + 0.75, "y": y + 0.75, "width": width - 1.5, "height": _HEIGHT - 1.5, "rx": 2}
    middle = (x + width / 2, y + _HEIGHT / 2 + 4)
    if density == 0:
        edge = tag("rect", **box, fill="#ffffff", stroke=_COLLAPSED, stroke_width=1.5, class_="collapsed")
        cross = tag("text", "✕", x=middle[0], y=middle[1], fill=_COLLAPSED, text_anchor="middle", class_="cross")
        return tag("g", title, edge, cross, class_="mark")
    colour = _colour(density, lowest)
    parts = [title, tag("rect", **box, fill=to_hex(colour))]
    if width >= 30:
        bright = 0.2126 * colour[0] ** 2.2 + 0.7152 * colour[1] ** 2.2 + 0.0722 * colour[2] ** 2.2
        ink = INK if bright > 0.2 else "#ffffff"
        parts.append(
            tag("text", _percent(density), x=middle[0], y=middle[1], fill=ink, text_anchor="middle", font_size=11)
        )
    return tag("g", *parts, class_="mark")


def _percent(density: float) -> str:
    percent = 100 * density
    if percent < 0.01:
        return "<.01"
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}" if percent >= 1 else f"{percent:.2f}"


def _scale(x: float, y: float, lowest: float) -> Markup:
    """Return the legend of the colours: a strip with its ticks, and the sign of a collapsed layer."""
    steps, strip = 60, 240.0
    parts = [
        tag(
            "rect", x=x + strip * step / steps, y=y, width=strip / steps + 0.6, height=10,
            fill=to_hex(_colour(lowest ** (1 - (step + 0.5) / steps), lowest)),
        )
        for step in range(steps)
    ]  # fmt: skip
    at = Scale(lowest, 1.0, x, x + strip, log=True)
    for value in log_ticks(lowest, 1.0):
        parts.append(tag("line", x1=at(value), x2=at(value), y1=y + 10, y2=y + 14, stroke=GRID, class_="axis"))
        parts.append(label(f"{100 * value:g} %", at(value), y + 27, soft=True, text_anchor="middle", font_size=11))
    parts.append(label("weights kept", x + strip + 40, y + 9, soft=True, font_size=11))
    parts.append(tag("text", "✕", x=x + strip + 40, y=y + 27, fill=_COLLAPSED, class_="cross", font_size=11))
    parts.append(label("a layer with nothing left", x + strip + 54, y + 27, soft=True, font_size=11))
    return tag("g", *parts)


def lowest_density(maps: Sequence[Mapping[str, Mapping[str, float]]]) -> float:
    """Return the power of ten below every density that is not zero, so that all heat maps share one scale."""
    found = [density for rows in maps for row in rows.values() for density in row.values() if density > 0]
    return min(0.1, 10.0 ** math.floor(math.log10(min(found, default=0.1)) + 1e-9))
