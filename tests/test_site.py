"""The site: built strictly, complete, and nothing in it comes from elsewhere."""

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ntksap
from tests.report.report_browser import CHROMIUM, DRIVER, browser

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "video": "src", "audio": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Resources(HTMLParser):
    """Collect what a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(values["href"])
        elif tag in LOADED:
            self.found.append(values.get(LOADED[tag]) or "")


def test_every_page_is_built(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {page.with_name("index.html") if page.stem == "README" else page.with_suffix(".html") for page in pages}
    assert len(built) > 40
    assert not [page for page in built if not (site / page).exists()]


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        resources = Resources()
        resources.feed(page.read_text())
        assert resources.found
        for address in resources.found:
            assert not re.match(r"(\w+:)?//", address), f"{page.name} loads {address}"
        assert 'class="mermaid"' not in page.read_text()  # material would fetch a library for it
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", sheet.read_text()), sheet.name


def test_no_page_shows_markdown_that_was_not_understood(site):
    for page in site.rglob("*.html"):
        shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r"```|&gt;&gt;&gt;|^:::|\]\(|\]\[ntksap", shown, re.MULTILINE), page.name


in_a_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver: make browser")


@pytest.mark.slow
@in_a_browser
def test_the_search_finds_a_method_in_a_site_without_a_server(site, tmp_path):
    found = "return [...document.querySelectorAll('.md-search-result__item h1')].map(title => title.textContent)"
    with browser(tmp_path / "profile") as window:
        window.screen(1280, 900)
        window.open(site / "index.html")
        window.click(".md-search__input")
        for key in "grasp":
            window.press(key)
        for _ in range(300):
            if titles := window.run(found):
                break
            time.sleep(0.1)
    assert "grasp" in titles


@pytest.mark.slow
@in_a_browser
def test_pages_fit_a_phone_and_ask_for_nothing_outside(site, tmp_path):
    with browser(tmp_path / "profile") as window:
        window.screen(390, 844, mobile=True)
        for page in sorted(site.rglob("*.html")):
            window.open(page)
            assert window.run("return document.documentElement.scrollWidth <= innerWidth"), page.name
        events = [json.loads(entry["message"])["message"] for entry in window.log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert (site / "index.html").as_uri() in asked
    assert not [address for address in asked if address.startswith(("http", "ws"))]


def test_the_reference_has_every_public_name_once():
    text = "".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md")))
    names = re.findall(r"^::: ntksap\.(\w+)$", text, re.MULTILINE)
    assert sorted(names) == [name for name in ntksap.__all__ if name != "__version__"], (
        "add `::: ntksap.NAME` for a new public name to a page of docs/api"
    )


@pytest.mark.parametrize("name", [name for name in ntksap.__all__ if name not in ("__version__", "ALLOCATIONS")])
def test_a_public_name_is_documented(name):
    assert inspect.getdoc(getattr(ntksap, name))
