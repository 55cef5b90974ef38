import xml.etree.ElementTree as ElementTree

import pytest
from markupsafe import Markup
from ntksap.report.curves import Curve, Quantity, curve_chart
from ntksap.report.heatmap import heat_map, lowest_density
from ntksap.report.plot import looks, marker
from ntksap.report.svg import Scale, log_ticks, spread, tag, ticks

from ntksap.report.charts import accuracy_chart
from ntksap.report.table import Cell
from tests.report.pages import SVG, titles


def cell(method, sparsity, mean, std=0.0, seeds=1):
    return Cell(method, sparsity, mean, std, seeds, 50.0, 10.0, 1.0, 2.0, 0)


def test_scales():
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(1.0, 0.01, 0, 100, log=True)(0.1) == pytest.approx(50)
    assert Scale(3, 3, 0, 100)(3) == 50


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 7), (97.1, 99.3), (1e-7, 3e-7), (0, 12345), (5, 5)])
def test_ticks_are_few_round_and_inside(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
    assert found == sorted(set(found))
    assert len(log_ticks(1e-20, 1)) <= 8


def test_a_spread_is_never_empty():
    for values in ([0.0], [5.0, 5.0], [-1.0], [1.0, 2.0]):
        low, high = spread(values)
        assert low < min(values) <= max(values) < high


def test_text_is_escaped_and_markup_is_not():
    assert tag("g", "<b>&", Markup("<i/>"), class_='"x"') == '<g class="&#34;x&#34;">&lt;b&gt;&amp;<i/></g>'
    assert ElementTree.fromstring(tag("text", "\x00\x1b\ud800ok")).text == "\N{REPLACEMENT CHARACTER}" * 3 + "ok"


def test_markers_and_looks_differ():
    assert len({marker(index, 10, 10, "#000") for index in range(8)}) == 8
    look = looks(["snip", "snip (shuffle)", "snip (invert)"])
    assert len({one.dash for one in look.values()}) == 4
    assert look["snip"].colour == look["snip (shuffle)"].colour
    assert looks(["ntk-sap", "snip"])["snip"] == look["snip"]  # whatever it is drawn with


@pytest.mark.parametrize(("last", "expected"), [(2, ["1", "2"]), (1, ["1"]), (10, ["2", "4", "6", "8", "10"])])
def test_epochs_are_whole_numbers(last, expected):
    axis = Quantity("epoch", whole=True).axis([1, last], 0, 100)
    assert [text for _, text in axis.ticks] == expected


def test_positions_in_the_accuracy_chart():
    table = [cell("snip", 0.9, 80.0), cell("snip", 0.99, 40.0), cell("snip", 0.999, 60.0), cell("dense", 0.0, 90.0)]
    svg = ElementTree.fromstring(accuracy_chart(table, "x", looks(["snip"])))
    line = next(svg.iter(f"{SVG}polyline")).get("points")
    (x1, y1), (x2, y2), (x3, y3) = (map(float, point.split(",")) for point in line.split())
    assert x1 < x2 < x3
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)  # equal ratios of density are equally far apart
    assert y1 < y3 < y2  # up is more accurate
    assert (y2 - y1) / (y2 - y3) == pytest.approx(2, abs=0.02)
    assert "snip at 99.9 %: 60.00 % (1 seed)" in titles(svg)


@pytest.mark.parametrize("narrow", [False, True])
def test_everything_in_the_accuracy_chart_is_inside(narrow):
    table = [cell(f"method-{i}", s, 100.0 * s * i / 11, 3, 3) for i in range(12) for s in (0.5, 0.9, 0.9999)]
    look = looks([f"method-{i}" for i in range(12)])
    svg = ElementTree.fromstring(accuracy_chart([*table, cell("dense", 0, 100)], "x", look, narrow=narrow))
    _, _, width, height = map(float, svg.get("viewBox").split())
    for element in svg.iter():
        for key, most in (("x", width), ("x2", width), ("cx", width), ("y", height), ("y2", height), ("cy", height)):
            assert -1 <= float(element.get(key, 0)) <= most


def test_curves_of_one_epoch_are_dots():
    curve = Curve("snip", "snip, seed 0", looks(["snip"])["snip"], [(1, 0.25)])
    chart = curve_chart("x", [curve], Quantity("epoch"), Quantity("loss"))
    svg = ElementTree.fromstring(chart.svg)
    assert svg.findall(".//*[@class='mark curve']/*[@class='dot']")
    assert chart.values["curves"] == [{"name": "snip, seed 0", "x": [1], "y": [0.25]}]


def test_charts_share_axes_when_they_are_to_be_compared():
    look = looks(["snip"])["snip"]
    low, high = (Curve("snip", name, look, [(1, y), (2, y)]) for name, y in (("low", 1.0), ("high", 9.0)))
    charts = [curve_chart("x", [one], Quantity("epoch"), Quantity("loss"), [low, high]) for one in (low, high)]
    first, second = ([text.text for text in ElementTree.fromstring(chart.svg).iter(f"{SVG}text")] for chart in charts)
    assert first == second


def test_a_heat_map_marks_collapsed_layers_and_colours_by_density():
    rows = {"snip": {"a.weight": 1.0, "b.weight": 0.0, "c.weight": 0.01}, "grasp": {"a.weight": 1.0, "c.weight": 0.1}}
    svg = ElementTree.fromstring(heat_map("x", rows, lowest_density([rows])))
    marks = [group for group in svg.iter(f"{SVG}g") if group.get("class") == "mark"]
    fills = {titles(mark)[0]: mark.find(f"{SVG}rect").get("fill") for mark in marks}
    assert set(fills) == {
        "snip, a.weight: 100 % kept",
        "snip, b.weight: nothing kept",
        "snip, c.weight: 1 % kept",
        "grasp, a.weight: 100 % kept",
        "grasp, c.weight: 10 % kept",
    }
    assert fills["snip, a.weight: 100 % kept"] == fills["grasp, a.weight: 100 % kept"] == "#fde725"
    assert fills["snip, c.weight: 1 % kept"] == "#440154"
    words = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"1 %", "10 %", "100 %", "a", "b", "c", "a layer with nothing left"} <= set(words)


def test_a_heat_map_of_a_deep_net_stays_readable():
    rows = {"snip": {f"layer{index}.conv.weight": 0.1 for index in range(60)}}
    svg = ElementTree.fromstring(heat_map("x", rows, 0.01))
    widths = {float(rect.get("width")) for rect in svg.iter(f"{SVG}rect") if rect.get("rx")}
    assert min(widths) >= 18
    assert float(svg.get("width")) > 1200
