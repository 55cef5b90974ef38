"""As much SVG as the report's figures need: elements, scales, ticks.

Colours are presentation attributes, which any style sheet overrules: alone, a figure is dark on light; in the page, the
style sheet adapts what has a class to the reader's light or dark mode.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

INK, SOFT, GRID = "#1b1f24", "#57606a", "#e3e6ea"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element; everything that is no Markup is escaped. ``class_`` is class, ``stroke_width`` stroke-width.

    >>> tag("text", "a < b", x=1.25, font_size=12)
    Markup('<text x="1.25" font-size="12">a &lt; b</text>')
    """
    shown = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _shown(value))
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(_clean(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, shown, inside)


def _shown(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, int | float) else _clean(value)


def _clean(text: str) -> Markup:
    return text if isinstance(text, Markup) else escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))


def drawing(width: float, height: float, title: str, *children: str, class_: str = "") -> Markup:
    """Return a whole figure, with its own namespace, size, font and description."""
    return tag(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_=f"chart {class_}".strip(),
        role="group",
        aria_label=title,
        font_family=FONT,
        font_size=12,
    )


def label(text: str, x: float, y: float, *, soft: bool = False, **attributes: str | float | None) -> Markup:
    """Return text in the page's colour, or in its softer one."""
    return tag("text", text, x=x, y=y, class_="soft" if soft else "ink", fill=SOFT if soft else INK, **attributes)


def text_width(text: str, size: float = 12) -> float:
    """Return about how wide a text is; fonts differ, so it is generous."""
    return 0.58 * size * len(text)


def shortened(text: str, most: int = 34) -> str:
    """Return the text, cut if it is longer than a legend can bear."""
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Scale:
    """From values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most about ``most`` round numbers from ``low`` to ``high``.

    >>> ticks(0, 100), ticks(97.1, 99.3)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [97.5, 98.0, 98.5, 99.0])
    """
    if not high > low:
        return [float(low)]
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [
        round(step * index, 12) for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return powers of ten from ``low`` to ``high``, each k-th if there are many.

    >>> log_ticks(0.5, 200)
    [1.0, 10.0, 100.0]
    """
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    step = max(1, math.ceil(len(powers) / most))
    return [10.0**power for power in powers[::step]]


def raised(power: int) -> str:
    """Return a whole number as a superscript.

    >>> f"10{raised(-12)}"
    '10⁻¹²'
    """
    return str(power).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def spread(values: Sequence[float], margin: float = 0.05) -> tuple[float, float]:
    """Return the range of some values with a margin, never of width zero."""
    low, high = min(values), max(values)
    pad = margin * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad
