"""The page in a real browser: clicks, keys and pointer are those of a user."""

import json
import shutil
import time
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
import tomli_w

from ntksap._base import sealed, toml, unsealed
from ntksap.methods import METHODS
from ntksap.report.page import build_report
from tests.report.report_browser import CHROMIUM, DRIVER, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs the Debian packages chromium and chromium-driver"),
]
TAB, RIGHT, DOWN = "\ue004", "\ue014", "\ue015"
SVG = "{http://www.w3.org/2000/svg}"

DRAWN = """return [...document.querySelectorAll(".plot")].map((plot) => {
  const box = plot.getBoundingClientRect();
  return {name: plot.getAttribute("aria-label"), width: box.width, height: box.height,
          lines: plot.querySelectorAll(".scatterlayer .trace, .heatmaplayer image").length,
          words: plot.querySelectorAll("text").length};
})"""
OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"
COLUMN = """return [...document.querySelectorAll(`#cost tbody tr > :nth-child(${arguments[0]})`)]
  .map((cell) => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value))"""
# where a point of the chart is on the screen: [selector, trace, point]
POINT = """const plot = document.querySelector(arguments[0]);
plot.scrollIntoView({block: "center", behavior: "instant"});
const {_fullLayout: {xaxis, yaxis}, data} = plot;
const trace = data.find((one) => one.name === arguments[1] && one.showlegend !== false) || data[0];
const box = plot.querySelector(".plotly").getBoundingClientRect();
const [x, y] = trace.z ? [arguments[2], 0] : [trace.x[arguments[2]], trace.y[arguments[2]]];
return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)]"""
HOVER = "return [...document.querySelectorAll('.hovertext')].map((label) => label.textContent)"
LEGEND = """const plot = document.querySelector(arguments[0]);
plot.scrollIntoView({block: "center", behavior: "instant"});
const entry = [...plot.querySelectorAll(".legend .traces")].find((one) => one.textContent === arguments[1]);
const box = entry.querySelector(".legendtoggle").getBoundingClientRect();
return [box.left + box.width / 2, box.top + box.height / 2]"""
SHOWN = """return document.querySelector(arguments[0]).data
  .filter((one) => one.visible !== "legendonly").map((one) => one.name)"""
ROOM = """const box = (one) => { const b = one.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
return [...document.querySelectorAll(":is(#accuracy, #learning) .panel:not(.off) .plot")].map((plot) => ({
  all: box(plot.querySelector(".main-svg")), size: plot._fullLayout._size,
  bar: plot.querySelector(".legend .scrollbar").getBoundingClientRect().height,
  names: [...plot.querySelectorAll(".legendtext")].map(box)}))"""
ACCURACY = "#accuracy .panel:not(.off) .plot"


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


@pytest.fixture(scope="module")
def thirteen(real_runs, tmp_path_factory):
    """A report on thirteen methods, three seeds and three sparsities: a real run under other names."""
    folder = tmp_path_factory.mktemp("thirteen")
    real = next(real_runs.glob("runs/*synflow-90.00-seed0*"))
    for method in list(METHODS)[:13]:
        for sparsity in (0.5, 0.9, 0.99):
            for seed in (0, 1, 2):
                one = folder / f"{method}-{sparsity}-{seed}"
                one.mkdir()
                who = {"method": method, "seed": seed, "sparsity": sparsity}
                about = unsealed(toml.loads((real / "settings.toml").read_text()))
                (one / "settings.toml").write_text(tomli_w.dumps(sealed({**about, **who})))
                top1 = 0.1 + (sum(map(ord, method)) * 37 * (seed + 1) % 800) / 1000
                result = unsealed(json.loads((real / "result.json").read_text()))
                (one / "result.json").write_text(json.dumps(sealed({**result, **who, "top1": top1})))
                shutil.copy(real / "metrics.jsonl", one)
    return build_report(folder)


@pytest.fixture
def opened(chrome, report):
    chrome.screen(1100, 900)
    chrome.log("performance")
    chrome.log("browser")
    chrome.open(report)
    return chrome


def requests(chrome):
    """What was asked for; images that the page itself holds or makes are none."""
    messages = [json.loads(entry["message"])["message"] for entry in chrome.log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    return {url for url in asked if not url.startswith(("data:", "blob:"))}


def downloaded(path):
    for _ in range(100):
        if path.exists():
            return path
        time.sleep(0.1)
    raise AssertionError(f"{path.name} was not downloaded")


def test_it_opens_without_an_error_or_a_request(opened, report):
    assert requests(opened) == {report.as_uri()}
    assert opened.log("browser") == []
    assert opened.run("return document.title") == "2 experiments in sample – ntksap report"


def test_no_button_asks_for_anything_outside(opened, report, tmp_path):
    opened.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    opened.run("""document.querySelectorAll("button, .modebar-btn").forEach((button) => button.dispatchEvent(
      new MouseEvent("click", {bubbles: true})))""")
    time.sleep(3)  # images are made in a while
    assert requests(opened) == {report.as_uri()}
    assert len(opened.run("return [...document.querySelector('.modebar').querySelectorAll('.modebar-btn')]")) == 5
    assert opened.log("browser") == []


def test_every_figure_is_drawn(opened):
    opened.run("""document.querySelectorAll(".choices button").forEach((button) => button.click());
    document.querySelectorAll(".panel").forEach((panel) => panel.classList.remove("off"))""")
    drawn = opened.run(DRAWN)
    assert len(drawn) == 3 + 2 + 4 + 2
    for one in drawn:
        assert one["width"] > 300, one
        assert one["height"] > 120, one
        assert one["lines"] >= 1, one
        assert one["words"] > 3, one


def test_without_script_every_table_is_there_and_the_page_says_what_is_not(chrome, report):
    chrome.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chrome.screen(1100, 900)
        chrome.open(report)
        assert chrome.run("return document.body.innerText.includes('Charts need JavaScript, which is in this file')")
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
    assert opened.run("return document.querySelectorAll('#densities .panel:not(.off) .heatmaplayer image').length") == 1
    pressed = "return [...document.querySelectorAll('#densities .choices button')].map((b) => b.ariaPressed)"
    assert opened.run(pressed) == ["true", "false"]


def test_accuracy_against_one_cost_at_a_time(opened):
    titles = []
    for place in (1, 2, 3):
        opened.click(f"#accuracy .choices button:nth-of-type({place})")
        titles.append(opened.run(f"return document.querySelector('{ACCURACY} .xtitle').textContent"))
    expected = ["sparsity (density on a logarithmic scale)", "multiply-adds of one inference", "weights kept"]
    assert titles == expected


def test_values_under_the_pointer(opened):
    opened.move_to(*opened.run(POINT, ACCURACY, "random", 1))
    (text,) = opened.run(HOVER)
    assert text.startswith("random at 90 %: ")
    opened.move_to(*opened.run(POINT, "#densities .panel:not(.off) .plot", "", 0))
    (text,) = opened.run(HOVER)
    assert text.endswith(" % kept")
    opened.move_to(*opened.run(POINT, "#learning .panel:not(.off) .plot", "dense", 1))
    (text,) = opened.run(HOVER)
    assert text.startswith("dense, seed 0epoch 2: test accuracy ")
    opened.move_to(2, 2)
    time.sleep(0.2)
    assert opened.run(HOVER) == []


def test_a_legend_entry_switches_its_lines_off_and_on(opened):
    assert opened.run(SHOWN, ACCURACY).count("random") == 1
    drawn = f"return document.querySelectorAll('{ACCURACY} .scatterlayer .trace .lines path').length"
    before = opened.run(drawn)
    at = opened.run(LEGEND, ACCURACY, "random")
    opened.pointer(("move", *at), "down", "up", 1.0)
    assert "random" not in opened.run(SHOWN, ACCURACY)
    assert opened.run(drawn) == before - 1
    opened.pointer(("move", *at), "down", "up", 1.0)
    assert opened.run(drawn) == before
    learning = "#learning .panel:not(.off) .plot"
    opened.pointer(("move", *opened.run(LEGEND, learning, "synflow")), "down", "up", 1.0)
    assert set(opened.run(SHOWN, learning)) == {"random", "magnitude", "dense"}  # both seeds are gone


def test_a_legend_entry_clicked_twice_is_alone(opened):
    at = opened.run(LEGEND, ACCURACY, "synflow")
    opened.pointer(("move", *at), "down", "up", 0.05, "down", "up", 1.0)
    assert opened.run(SHOWN, ACCURACY) == ["synflow"]


def test_what_is_hidden_stays_hidden_when_the_page_changes_its_colours(opened):
    opened.pointer(("move", *opened.run(LEGEND, ACCURACY, "random")), "down", "up", 1.0)
    opened.screen(1100, 900, dark=True)
    time.sleep(0.5)
    assert "random" not in opened.run(SHOWN, ACCURACY)
    colour = opened.run(f"return getComputedStyle(document.querySelector('{ACCURACY} .xtitle')).fill")
    assert colour == "rgb(230, 233, 237)"


def test_dragging_zooms_and_a_double_click_shows_all(opened):
    ranges = (
        f"const {{xaxis, yaxis}} = document.querySelector('{ACCURACY}')._fullLayout; return [xaxis.range, yaxis.range]"
    )
    before = opened.run(ranges)
    x, y = opened.run(POINT, ACCURACY, "random", 1)
    opened.pointer(("move", x - 120, y - 60), "down", ("move", x - 60, y - 20), ("move", x - 20, y + 10), "up", 0.5)
    (left, right), (low, high) = opened.run(ranges)
    (all_left, all_right), (all_low, all_high) = before
    assert abs(right - left) < abs(all_right - all_left) / 2
    assert high - low < all_high - all_low
    opened.pointer(("move", x - 60, y - 20), "down", "up", 0.05, "down", "up", 1.0)
    assert opened.run(ranges)[0] == pytest.approx(before[0])


def test_values_by_keyboard(opened):
    def said(key):
        opened.press(key)
        time.sleep(0.3)  # Plotly shows at most so many values a second
        (shown,) = opened.run(HOVER)
        heard = opened.run("return document.getElementById('said').textContent")
        assert shown.replace(" ", "") == heard.replace(", mean", "mean").replace(" ", "")
        return heard

    opened.run(f"document.querySelector('{ACCURACY}').focus({{focusVisible: true}})")
    assert said(RIGHT).startswith("random at 50 %: ")
    assert said(RIGHT).startswith("random at 90 %: ")
    assert said(DOWN).startswith("synflow at 90 %: ")
    stops = []
    for _ in range(6):  # not one for each point: the next are its buttons, to zoom and to download
        opened.press(TAB)
        stops.append(opened.run("return document.activeElement.dataset.title || document.activeElement.innerText"))
    assert stops == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes", "Download SVG"]
    opened.run("document.querySelector('#densities .panel:not(.off) .plot').focus({focusVisible: true})")
    (method, layer), (other, same) = (said(key).split(":")[0].split(", ") for key in (RIGHT, DOWN))
    assert method != other
    assert layer == same


@pytest.mark.parametrize("dark", [False, True])
def test_a_chart_downloads_as_an_image_that_is_dark_on_white(chrome, report, tmp_path, dark):
    chrome.screen(1100, 900, dark=dark)
    chrome.open(report)
    chrome.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chrome.click(f"{ACCURACY.replace(' .plot', '')} [data-image=svg]")
    path = downloaded(tmp_path / "accuracy-lenet-300-100-on-digits-2-epochs.svg")
    svg = ElementTree.fromstring(path.read_text())
    assert svg.tag == f"{SVG}svg"
    assert {"random", "synflow", "dense"} <= {text.text for text in svg.iter(f"{SVG}text")}
    assert "rgb(255, 255, 255)" in next(svg.iter(f"{SVG}rect")).get("style")  # the paper
    assert "rgb(230, 233, 237)" not in path.read_text()
    chrome.click(f"{ACCURACY.replace(' .plot', '')} [data-image=png]")
    assert downloaded(path.with_suffix(".png")).read_bytes().startswith(b"\x89PNG")
    chrome.open(path)
    box = chrome.run("const b = document.documentElement.getBoundingClientRect(); return [b.width, b.height]")
    assert box == [float(svg.get("width")), float(svg.get("height"))]
    assert chrome.log("browser") == []


def test_tables_download_as_latex_and_csv(opened, tmp_path):
    opened.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    opened.click("#table button[data-file$='.tex']")
    latex = downloaded(tmp_path / "Test-accuracy-of-lenet-300-100-on-digits-2-epochs.tex").read_text()
    assert latex.startswith("% needs \\usepackage{booktabs}\n\\begin{tabular}")
    opened.click("#table button[data-file$='.csv']")
    table = downloaded(tmp_path / "Test-accuracy-of-lenet-300-100-on-digits-2-epochs.csv").read_text()
    assert table.startswith("method,sparsity,mean,")
    assert len(table.splitlines()) == 6


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "mobile"), [(1100, False), (768, False), (360, True)])
@pytest.mark.parametrize("which", ["report", "thirteen"])
def test_nothing_overflows(chrome, request, which, dark, width, mobile):
    chrome.screen(width, 740, dark=dark, mobile=mobile)
    chrome.open(request.getfixturevalue(which))
    chrome.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert chrome.run(OVERFLOW) <= 0
    assert chrome.run("return innerWidth") == width


@pytest.mark.parametrize(("width", "mobile"), [(1100, False), (360, True)])
def test_charts_of_thirteen_methods_have_room(chrome, thirteen, width, mobile):
    """Every legend entry is inside its chart and beside or below the plot, which keeps most of its height."""
    chrome.screen(width, 740, mobile=mobile)
    chrome.open(thirteen)
    found = chrome.run(ROOM)
    assert len(found) == 3
    for chart in found:
        left, top, right, bottom = chart["all"]
        assert len(chart["names"]) == 13
        assert chart["bar"] == 0  # nothing has to be scrolled
        assert chart["size"]["h"] > 180
        assert chart["size"]["w"] > 240
        inner = (left + chart["size"]["l"] + chart["size"]["w"], top + chart["size"]["t"] + chart["size"]["h"])
        for x0, y0, x1, y1 in chart["names"]:
            assert left <= x0 < x1 <= right + 1
            assert top <= y0 < y1 <= bottom + 1
            assert x0 > inner[0] or y0 > inner[1]
        assert not any(  # no name lies on another
            a is not b and a[0] < b[2] - 1 and b[0] < a[2] - 1 and a[1] < b[3] - 3 and b[1] < a[3] - 3
            for a in chart["names"]
            for b in chart["names"]
        )


def test_dark_mode_is_dark_and_its_text_can_be_read(chrome, report):
    colours = f"""const page = getComputedStyle(document.body);
    const name = getComputedStyle(document.querySelector("{ACCURACY} .legendtext"));
    return [page.backgroundColor, page.color, name.fill]"""
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
        time.sleep(0.5)
        assert len([one for one in opened.run(DRAWN) if one["width"] and one["lines"]]) == 3 + 2 + 4 + 2
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
