"""The page in a real browser: clicks, keys and pointer are those of a user."""

import json
import shutil
import time
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from ntksap.report.page import build_report
from tests.report.pages import SVG
from tests.report.report_browser import CHROMIUM, DRIVER, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs the Debian packages chromium and chromium-driver"),
]
TAB, RIGHT = "\ue004", "\ue014"

BOXES = """return [...document.querySelectorAll(".chart")].map((chart) => {
  const box = chart.getBoundingClientRect();
  const marks = [...chart.querySelectorAll(".mark")].map((mark) => mark.getBBox());
  return {name: chart.getAttribute("aria-label"), width: box.width, height: box.height, marks: marks.length,
          shapes: chart.querySelectorAll("polyline, polygon, circle, rect").length};
})"""
OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"
COLUMN = """return [...document.querySelectorAll(`#cost tbody tr > :nth-child(${arguments[0]})`)]
  .map((cell) => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value))"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as session:
        yield session


@pytest.fixture(scope="module")
def report(real_runs, tmp_path_factory):
    spectra = [
        {"method": method, "sparsity": sparsity, "eigenvalues": [4.0 / k for k in range(1, 9)], "distance": 0.1}
        for method, sparsity in (("dense", 0.0), ("synflow", 0.5), ("synflow", 0.9))
    ]
    folder = shutil.copytree(real_runs, tmp_path_factory.mktemp("browser") / "sample")
    (folder / "spectrum.json").write_text(json.dumps({"spectra": spectra}))
    return build_report(folder)


@pytest.fixture
def opened(chrome, report):
    chrome.screen(1100, 900)
    chrome.log("performance")
    chrome.log("browser")
    chrome.open(report)
    return chrome


def requests(chrome):
    messages = [json.loads(entry["message"])["message"] for entry in chrome.log("performance")]
    return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}


def test_it_opens_without_an_error_or_a_request(opened, report):
    assert requests(opened) == {report.as_uri()}
    assert opened.log("browser") == []
    assert opened.run("return document.title") == "2 experiments in sample – ntksap report"


def test_every_figure_is_drawn(opened):
    opened.run("document.querySelectorAll('.panel').forEach((panel) => panel.classList.remove('off'))")
    drawn = opened.run(BOXES)
    assert len(drawn) == 2 + 2 + 4 + 2
    shown = [one for one in drawn if one["width"]]
    assert len(shown) == len(drawn) - 1  # the accuracy figure for narrow screens
    for one in shown:
        assert one["width"] > 300, one
        assert one["height"] > 120, one
        assert one["marks"] >= 2, one
        assert one["shapes"] > one["marks"], one


def test_without_script_every_figure_and_table_is_there(chrome, report):
    chrome.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chrome.screen(1100, 900)
        chrome.open(report)
        shown = [one for one in chrome.run(BOXES) if one["width"]]
        assert len(shown) == 9
        assert chrome.run("return document.querySelectorAll('.mark > title').length") > 40
        assert chrome.run("return [...document.querySelectorAll('button')].every((b) => !b.getClientRects().length)")
        assert chrome.run("return [...document.querySelectorAll('table')].every((t) => t.getClientRects().length)")
    finally:
        chrome.devtools("Emulation.setScriptExecutionDisabled", value=False)


def test_tables_sort_by_clicks(opened):
    train = "#cost thead th:nth-child(5)"
    before = opened.run(COLUMN, 5)
    assert opened.run(f"return document.querySelector('{train}').ariaSort") == "none"
    opened.click(f"{train} button")
    assert opened.run(COLUMN, 5) == sorted(before)
    assert opened.run(f"return document.querySelector('{train}').ariaSort") == "ascending"
    opened.click(f"{train} button")
    assert opened.run(COLUMN, 5) == sorted(before, reverse=True)
    assert opened.run(f"return document.querySelector('{train}').ariaSort") == "descending"
    opened.click("#cost thead th:nth-child(1) button")
    assert opened.run(COLUMN, 1) == ["dense", "random", "random", "synflow", "synflow"]
    assert opened.run(f"return document.querySelector('{train}').ariaSort") == "none"
    opened.click("#table thead th:nth-child(2) button")
    footer = opened.run("return document.querySelector('#table tfoot').innerText")
    assert footer.startswith("The dense network, at 0 % sparsity: ")


def test_one_sparsity_at_a_time(opened):
    visible = "return [...document.querySelectorAll('#densities .panel')].map((p) => p.getClientRects().length > 0)"
    assert opened.run(visible) == [False, True]
    opened.click("#densities .choices button:nth-of-type(1)")
    assert opened.run(visible) == [True, False]
    pressed = "return [...document.querySelectorAll('#densities .choices button')].map((b) => b.ariaPressed)"
    assert opened.run(pressed) == ["true", "false"]


def test_values_under_the_pointer(opened):
    place = """const chart = document.querySelector(arguments[0]);
    chart.scrollIntoView({block: "center", behavior: "instant"});
    const mark = chart.querySelectorAll(arguments[1])[arguments[2]];
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2]"""
    tip = "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.innerText"
    opened.move_to(*opened.run(place, "#accuracy .wide", ".marks .mark", 1))
    assert opened.run(tip).startswith("random at 90 %: ")
    opened.move_to(*opened.run(place, "#densities .panel:not(.off) .chart", ".mark", 0))
    assert " % kept" in opened.run(tip)
    opened.move_to(*opened.run(place, "#learning .panel:not(.off) .chart", ".curve:last-of-type .ink-area", 0))
    name, value = opened.run(tip).split("\n")
    assert name.startswith("dense, seed ")
    assert value.startswith("epoch 2: test accuracy ")
    assert opened.run("return document.querySelectorAll('#learning .chosen .curve.on').length") == 1
    opened.move_to(2, 2)
    assert opened.run(tip) is None


def test_values_by_keyboard(opened):
    opened.run("document.querySelector('#accuracy .download').focus()")
    label = "return document.activeElement.getAttribute('aria-label')"
    opened.run("document.querySelector('#accuracy .wide .mark').focus({focusVisible: true})")
    first = opened.run(label)
    opened.press(RIGHT)
    second = opened.run(label)
    assert first.startswith("dense: ")
    assert second.startswith("random at 50 %: ")
    assert opened.run("return document.getElementById('tip').innerText") == second
    opened.press(TAB)  # one stop per figure: the next is its button
    assert opened.run("return document.activeElement.className") == "download"


def test_a_figure_downloads_as_a_standalone_svg(opened, tmp_path):
    opened.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    opened.click("#accuracy .download")
    path = tmp_path / "accuracy-lenet-300-100-on-digits-2-epochs.svg"
    for _ in range(100):
        if path.exists():
            break
        time.sleep(0.1)
    svg = ElementTree.fromstring(path.read_text())
    assert svg.tag == f"{SVG}svg"
    assert len(list(svg.iter(f"{SVG}title"))) == 5
    opened.open(path)
    box = opened.run("const b = document.documentElement.getBoundingClientRect(); return [b.width, b.height]")
    assert box == [float(svg.get("width")), float(svg.get("height"))]
    assert opened.log("browser") == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "mobile"), [(1100, False), (768, False), (360, True)])
def test_nothing_overflows(chrome, report, dark, width, mobile):
    chrome.screen(width, 740, dark=dark, mobile=mobile)
    chrome.open(report)
    chrome.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert chrome.run(OVERFLOW) <= 0
    assert chrome.run("return innerWidth") == width
    narrow = "return document.querySelector('.narrow').getClientRects().length > 0"
    assert chrome.run(narrow) == (width < 640)


def test_dark_mode_is_dark_and_its_text_can_be_read(chrome, report):
    colours = """const page = getComputedStyle(document.body);
    return [page.backgroundColor, page.color, getComputedStyle(document.querySelector("svg .ink")).fill]"""
    brightness = []
    for dark in (False, True):
        chrome.screen(1100, 900, dark=dark)
        chrome.open(report)
        brightness += [[sum(map(int, colour[4:-1].split(","))) / 765 for colour in chrome.run(colours)]]
    light, dark = brightness
    assert light[0] > 0.9
    assert dark[0] < 0.15
    assert max(light[1:]) < 0.2
    assert min(dark[1:]) > 0.8


def test_print_shows_every_panel_and_no_button(opened):
    opened.devtools("Emulation.setEmulatedMedia", media="print")
    try:
        assert len([one for one in opened.run(BOXES) if one["width"]]) == 9
        buttons = "return [...document.querySelectorAll('button')].filter((b) => b.getClientRects().length)"
        assert len(opened.run(buttons)) == opened.run("return document.querySelectorAll('thead button').length")
        assert len(opened.devtools("Page.printToPDF")["data"]) > 10_000
    finally:
        opened.devtools("Emulation.setEmulatedMedia", media="")


def test_sections_do_not_overlap(opened):
    boxes = opened.run(
        "return [...document.querySelectorAll('section')].map((s) => s.getBoundingClientRect().toJSON())"
    )
    assert all(first["bottom"] <= second["top"] for first, second in pairwise(boxes))
