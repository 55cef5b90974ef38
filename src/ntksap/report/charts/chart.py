"""What the charts share: a chart, the lines and axes in it, and text that is only text.

Colours that depend on the reader's light or dark mode are named ("ink", "soft", "grid", "page", "bad", "shade"): the
page's script knows what they are.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ntksap.report.figures import Look
from ntksap.runs import DENSE

Trace = dict[str, Any]
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML
_LONGEST = 34
"""Names are broken into lines of at most this many characters."""


@dataclass(frozen=True)
class Chart:
    """A chart: ``data`` and ``layout`` as Plotly takes them; ``height`` is that of the plot without its legend.

    A screen narrower than ``min_width`` scrolls it; ``file`` is its name when it is downloaded.
    """

    title: str
    caption: str
    file: str
    data: list[Trace]
    layout: dict[str, Any]
    height: int = 300
    min_width: int = 0

    @property
    def drawn(self) -> dict[str, Any]:
        """What the page's script reads."""
        names = {key: getattr(self, key) for key in ("data", "layout", "height", "file")}
        return {**names, "minWidth": self.min_width}


@dataclass(frozen=True)
class Panel:
    """Charts that are shown together, under one choice."""

    choice: str
    charts: Sequence[Chart] = field(default_factory=list)


def file_name(*parts: str) -> str:
    """Return a name for a file, without characters that a file name cannot hold."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.")[:120]


def plain(text: str, most: int = 200) -> str:
    """Return a text that Plotly shows as it is: otherwise it would take tags for markup.

    >>> plain("a<b>&")
    'a&lt;b>&amp;'
    """
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", cut).replace("&", "&amp;").replace("<", "&lt;")


def broken(name: str) -> str:
    """Return a name in lines that fit beside a plot, whole, so that no two names look alike.

    >>> broken("ntk-sap-analytic, erk, degree decay 0.2")
    'ntk-sap-analytic, erk, degree<br>decay 0.2'
    """
    return "<br>".join(plain(part) for part in textwrap.wrap(name, _LONGEST, break_on_hyphens=False)) or plain(name)


def line(method: str, look: Look | None, x: Sequence[float], y: Sequence[float], **more: Any) -> Trace:
    """Return a line of a method; None looks like the dense network. All lines of a method share one legend entry."""
    colour = "ink" if look is None else look.colour
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": broken(method),
        "legendgroup": plain(method),
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": look.width if look else 1.4, "dash": look.dash[0] if look else "dash"},
        "marker": {"color": colour, "symbol": look.marker[0] if look else "circle", "size": 7},
        **more,
    }


def once_in_legend(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces, ntk-sap last and so on top, the first of each group with an entry in the legend."""
    ordered = sorted(traces, key=lambda trace: trace["legendgroup"] == "ntk-sap")
    firsts = {id(trace) for trace in {trace["legendgroup"]: trace for trace in reversed(ordered)}.values()}
    rank = {group: place for place, group in enumerate(dict.fromkeys(trace["legendgroup"] for trace in traces))}
    return [{**trace, "showlegend": id(trace) in firsts, "legendrank": rank[trace["legendgroup"]]} for trace in ordered]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis in the page's colours."""
    return {
        "title": {"text": title, "standoff": 10},
        "gridcolor": "grid",
        "linecolor": "soft",
        "zeroline": False,
        "automargin": True,
        **more,
    }


def spread(values: Sequence[float], margin: float = 0.05) -> list[float]:
    """Return the range of some values with a margin, never of width zero.

    >>> spread([0.0, 10.0])
    [-0.5, 10.5]
    """
    low, high = min(values), max(values)
    pad = margin * (high - low) or margin * abs(high) or 1.0
    return [low - pad, high + pad]


def look_of(method: str, looks: dict[str, Look]) -> Look | None:
    """Return how a method looks; None for the dense network."""
    return None if method == DENSE else looks[method]
