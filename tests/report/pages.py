"""Looking into a page without a browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """The tags, texts and attributes of a page, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.charts: dict[str, dict[str, Any]] = {}
        """What each chart is drawn from, by its label."""
        self._label = ""
        self._raw = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        own = dict(attrs)
        self.tags.append((tag, own))
        self._raw = tag if tag in ("script", "style") else ""
        if own.get("class") == "plot":
            self._label = own["aria-label"] or ""
        if own.get("type") == "application/json":
            self._raw = "chart"

    def handle_endtag(self, tag):
        self._raw = ""

    def handle_data(self, data):
        if self._raw == "chart":
            assert self._label not in self.charts
            self.charts[self._label] = json.loads(data)
        elif not self._raw:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def own(self) -> str:
        """The page without the library in it."""
        scripts = re.findall(r"<script>.*?</script>", self.source, re.DOTALL)
        return self.source.replace(max(scripts, key=len), "")

    def chart(self, label: str) -> dict[str, Any]:
        return next(chart for name, chart in self.charts.items() if label in name)

    def count(self, tag: str, **attributes: str) -> int:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return sum(name == tag and wanted.items() <= own.items() for name, own in self.tags)


def texts(chart: dict[str, Any]) -> list[str]:
    """What a pointer shows at the points of a chart that have a text of their own."""
    return [text for trace in chart["data"] if trace.get("hoverinfo") != "skip" for text in trace.get("text", [])]


def section(source: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">.*?</section>', source, re.DOTALL)
    assert found, f"no section {name}"
    return found.group()
