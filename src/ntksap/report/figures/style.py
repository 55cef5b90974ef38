"""What the figures share: how a method looks, the axis of sparsities, and how a figure is saved."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from ntksap._base import unknown, write_atomically
from ntksap.methods import METHODS

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
    "thin": "#3c3c3c",
}
# For methods that the paper does not draw.
_OTHERS = ("#7f4fc9", "#f08a24", "#3b7a57", "#8fa8d8", "#b5651d", "#00a37a", "#9c1f5c", "#6f8f00", "#c38fff", "#4d6f8f",
           "#a8324a", "#5e5a00", "#2f4b7c", "#d4a373")  # fmt: skip
# (in the page, in files)
_MARKERS = (
    ("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("triangle-down", "v"), ("star", "*"),
    ("hexagon", "h"), ("cross", "P"), ("x", "X"), ("triangle-left", "<"), ("triangle-right", ">"), ("pentagon", "p"),
)  # fmt: skip
Dash: TypeAlias = tuple[str, Any]
_SOLID: Dash = ("solid", "-")
_DASHES: dict[str, Dash] = {"shuffle": ("dash", "--"), "reinit": ("dashdot", "-."), "invert": ("dot", ":")}
_PATTERNS: dict[str, Dash] = {
    "channel": ("longdash", "--"),
    "block": ("dot", ":"),
    "2:4": ("dashdot", "-."),
    "at": ("longdashdot", "-."),
}
# For other variants, in turn.
_VARIANTS: tuple[Dash, ...] = (
    ("dash", "--"),
    ("dot", ":"),
    ("dashdot", "-."),
    ("longdash", (0, (8, 3))),
    ("longdashdot", (0, (8, 3, 1, 3))),
)
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 120,
    "svg.hashsalt": "ntksap",  # the same figure gives the same file
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn: marker and dash are (in the page, in files)."""

    colour: str
    marker: tuple[str, str]
    dash: Dash
    width: float


def colour_of(method: str, index: int = 0) -> str:
    """Return the colour of a method; its variants share it. A method that is in no table takes colour ``index``."""
    name = _name(method)
    others = [known for known in METHODS if known not in COLOURS]
    place = others.index(name) if name in others else len(others) + index
    return COLOURS.get(name, _OTHERS[place % len(_OTHERS)])


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return the look of each method; a method of the table looks the same in every figure."""
    known = list(METHODS)
    places = [known.index(method) if method in known else len(known) + index for index, method in enumerate(methods)]
    plain = [method for method in methods if ", " in method and _dash(method) == _SOLID]
    turns = {method: sum(_name(one) == _name(method) for one in plain[:index]) for index, method in enumerate(plain)}
    return {
        method: Look(
            colour_of(method, index),
            _MARKERS[place % len(_MARKERS)],
            _VARIANTS[turns[method] % len(_VARIANTS)] if method in turns else _dash(method),
            2.4 if method == "ntk-sap" else 1.4,
        )
        for index, (method, place) in enumerate(zip(methods, places, strict=True))
    }


def _name(method: str) -> str:
    """Return the name of a method without what distinguishes its variants."""
    return re.split("[ ,]", method)[0]


def _dash(method: str) -> Dash:
    """Return the dash of a sanity check, or of the patterns that a method is compared in; single weights are solid."""
    check = method.rpartition(" (")[2].rstrip(")")
    found = [
        dash for word in method.split(" ")[1:] for beginning, dash in _PATTERNS.items() if word.startswith(beginning)
    ]
    return _DASHES.get(check) or (found[-1] if found else _SOLID)


def save_figure(figure: Figure, folder: Path, name: str) -> list[str]:
    """Write a figure as PNG and SVG (without a date, so that the same figure gives the same file); return the names."""
    names = [f"{name}.png", f"{name}.svg"]
    for file in names:
        write_figure(figure, folder / file)
    return names


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file of the kind that its suffix says, all of it or nothing."""
    kind, known = path.suffix.lower().lstrip("."), figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise unknown("kind of picture", kind, known)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, drawn.getvalue())


def sparsity_axis(axes: Axes, sparsities: Sequence[float]) -> None:
    """Label an axis of densities by sparsities, rising to the right."""
    if len(sparsities) == 1:  # a single point has no extent of its own
        axes.set_xlim((1 - sparsities[0]) / 2, (1 - sparsities[0]) * 2)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.xaxis.set_major_locator(FixedLocator([1 - s for s in sparsities]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda density, _: f"{100 * (1 - density):.4g} %")
    axes.set_xlabel("sparsity (density on a logarithmic scale)")
