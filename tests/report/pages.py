"""Looking into a page without a browser."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """The tags, texts and attributes of a page, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._raw = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._raw = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag):
        self._raw = ""

    def handle_data(self, data):
        if not self._raw:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def drawings(self) -> list[ElementTree.Element]:
        """The figures, each parsed as the XML document that it is alone."""
        return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", self.source, re.DOTALL)]

    def drawing(self, label: str) -> ElementTree.Element:
        return next(svg for svg in self.drawings if label in svg.get("aria-label", ""))

    def count(self, tag: str, **attributes: str) -> int:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return sum(name == tag and wanted.items() <= own.items() for name, own in self.tags)


def titles(svg: ElementTree.Element) -> list[str]:
    return [title.text or "" for title in svg.iter(f"{SVG}title")]


def section(source: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">.*?</section>', source, re.DOTALL)
    assert found, f"no section {name}"
    return found.group()
