import math

import pytest

from ntksap.methods import METHODS
from ntksap.report.charts import accuracy_panels, density_panels, learning_panels, spectra_panels
from ntksap.report.charts.accuracy import pareto_front
from ntksap.report.charts.chart import file_name, plain, spread
from ntksap.report.charts.densities import lowest_density
from ntksap.report.experiments import experiments
from ntksap.report.figures import COLOURS, looks
from ntksap.report.reading import Run
from ntksap.report.run_files import Spectrum
from tests.report.finished_runs import finished, seeds, timed


def experiment(*runs):
    (one,) = experiments(runs)
    return one


def chart_of(panels, choice):
    (chart,) = next(panel.charts for panel in panels if panel.choice == choice)
    return chart


def trace_of(chart, name, **wanted):
    return next(t for t in chart.data if t.get("name") == name and wanted.items() <= t.items())


def test_a_spread_is_never_empty():
    for values in ([0.0], [5.0, 5.0], [-1.0], [1.0, 2.0]):
        low, high = spread(values)
        assert low < min(values) <= max(values) < high


def test_text_is_only_text():
    assert plain("<b>&amp;") == "&lt;b>&amp;amp;"
    assert plain("\x00\x1b\ud800ok") == "\N{REPLACEMENT CHARACTER}" * 3 + "ok"
    assert plain("x" * 50, 10) == "x" * 9 + "…"
    assert file_name("a/../b: <c>", "é") == "a-..-b-c"


def test_markers_and_looks_differ():
    look = looks(["snip", "snip (shuffle)", "snip (invert)", "snip (reinit)"])
    assert len({one.dash for one in look.values()}) == 4
    assert len({one.colour for one in look.values()}) == 1
    assert looks(["ntk-sap", "snip"])["snip"] == look["snip"]  # whatever it is drawn with
    names = [f"my-own-{index}" for index in range(8)]
    own = looks(names)
    assert len({(one.colour, one.marker) for one in own.values()}) == 8


def test_variants_of_a_method_share_its_colour_and_differ_in_their_lines():
    look = looks(["snip", "snip, erk", "snip, rigl", "snip, degree decay 0.2", "snip, 2:4", "grasp, erk"])
    own = [one for method, one in look.items() if method.startswith("snip")]
    assert len({one.colour for one in own}) == 1
    assert len({one.dash for one in own[:4]}) == len({(one.dash, one.marker) for one in own[:5]}) - 1 == 4
    assert look["grasp, erk"].dash == look["snip, erk"].dash


def test_no_two_methods_of_the_table_look_alike():
    made = looks(list(METHODS))
    assert len({one.colour for one in made.values()}) == len(METHODS)
    assert made["ntk-sap"].colour == COLOURS["ntk-sap"]


@pytest.mark.parametrize(("last", "step"), [(2, 1), (1, 1), (8, 1), (9, 2), (160, 20)])
def test_epochs_are_whole_numbers(last, step):
    records = [{"epoch": epoch, "top1": 0.5, "train_loss": 1.0} for epoch in range(1, last + 1)]
    (run,) = seeds("snip", 0.9, 0.8)
    (panel,) = learning_panels(experiment(Run("x", "unfinished", run.settings, records=records)))
    for chart in panel.charts:
        assert chart.layout["xaxis"]["dtick"] == step
        assert chart.layout["xaxis"]["tick0"] == 0


def test_positions_in_the_accuracy_chart():
    one = experiment(
        *seeds("snip", 0.9, 0.8), *seeds("snip", 0.99, 0.4), *seeds("snip", 0.999, 0.6), *seeds("dense", 0.0, 0.9)
    )
    chart = chart_of(accuracy_panels(one), "sparsity")
    snip = trace_of(chart, "snip")
    assert snip["x"] == pytest.approx([0.1, 0.01, 0.001])
    assert snip["y"] == pytest.approx([80, 40, 60])
    assert "error_y" not in snip
    assert snip["text"][2] == "snip at 99.9 %: 60.00 %<br>1 seed"
    axis = chart.layout["xaxis"]
    assert axis["type"] == "log"
    assert axis["range"][0] > -1  # sparsity rises to the right, so density falls
    assert axis["range"][1] < -3
    assert axis["ticktext"] == ["90 %", "99 %", "99.9 %"]
    assert axis["tickvals"] == pytest.approx([0.1, 0.01, 0.001])
    dense = trace_of(chart, "dense", mode="lines")
    assert set(dense["y"]) == {90.0}
    assert [math.log10(dense["x"][0]), math.log10(dense["x"][-1])] == pytest.approx(axis["range"])


def test_error_bars_are_the_deviation_over_seeds_and_stand_side_by_side():
    one = experiment(
        *seeds("snip", 0.9, 0.8, 0.82, 0.84), *seeds("grasp", 0.9, 0.7, 0.7), *seeds("snip", 0.99, 0.5, 0.6)
    )
    chart = chart_of(accuracy_panels(one), "sparsity")
    snip, grasp = trace_of(chart, "snip"), trace_of(chart, "grasp")
    assert snip["error_y"]["array"] == pytest.approx([2.0, 100 * math.sqrt(0.005)])
    assert snip["text"][0] == "snip at 90 %: 82.00 ± 2.00 %<br>mean ± std of 3 seeds"
    assert snip["x"][0] != grasp["x"][0]
    assert [snip["x"][0], grasp["x"][0]] == pytest.approx([0.1, 0.1], rel=0.1)
    dense = experiment(*seeds("dense", 0.0, 0.9, 0.92), *seeds("snip", 0.5, 0.9))
    band = trace_of(chart_of(accuracy_panels(dense), "sparsity"), "dense", mode="none")
    assert [min(band["y"]), max(band["y"])] == pytest.approx([91 - math.sqrt(2), 91 + math.sqrt(2)])


def test_accuracy_against_what_it_costs_marks_the_pareto_front():
    runs = [
        finished("snip", 0.9, 0, 0.8, flops=20.0, kept=10),
        finished("grasp", 0.9, 0, 0.7, flops=10.0, kept=10),
        finished("force", 0.9, 0, 0.6, flops=30.0, kept=10),
        finished("dense", 0.0, 0, 0.9, flops=100.0),
    ]
    panels = accuracy_panels(experiment(*runs))
    assert [panel.choice for panel in panels] == ["sparsity", "multiply-adds", "weights"]
    by_flops, by_weights = (chart_of(panels, choice) for choice in ("multiply-adds", "weights"))
    front = trace_of(by_flops, "Pareto front")
    assert (front["x"], front["y"]) == ([10, 20, 100], pytest.approx([70, 80, 90]))
    assert trace_of(by_flops, "force")["x"] == [30.0]
    front = trace_of(by_weights, "Pareto front")
    assert (front["x"], front["y"]) == ([10, 100], pytest.approx([80, 90]))
    assert trace_of(by_weights, "dense")["x"] == [100]  # what pruned runs say of the whole network


def test_results_that_do_not_say_their_weights_are_not_drawn_against_them():
    panels = accuracy_panels(experiment(*seeds("snip", 0.9, 0.8), *seeds("dense", 0.0, 0.9)))
    assert [panel.choice for panel in panels] == ["sparsity", "multiply-adds"]


def test_accuracy_is_drawn_against_time_where_it_was_measured():
    runs = [
        finished("dense", 0.0, 0, 0.9, timings=timed(1.0)),
        finished("thin", 0.75, 0, 0.8, timings=timed(0.25), budget="multiply-adds"),
        finished("snip", 0.75, 0, 0.85, timings=timed(0.5), pattern="channel"),
        finished("snip", 0.75, 0, 0.7, timings=timed(0.5), pattern="channel", places="random"),
        finished("snip", 0.75, 0, 0.88),
    ]
    one = experiment(*runs)
    assert [cell.method for cell in one.table] == [
        "dense", "thin", "snip", "snip, channel", "snip, channel, at random"
    ]  # fmt: skip
    chart = chart_of(accuracy_panels(one), "time of training")
    drawn = {trace["name"]: trace["x"] for trace in chart.data if trace["name"] != "Pareto front"}
    assert drawn == {"dense": [1000.0], "thin": [250.0], "snip, channel": [500.0],
                     "snip, channel, at random": [500.0]}  # fmt: skip
    assert trace_of(chart, "Pareto front")["x"] == [250.0, 500.0, 1000.0]
    assert "time of training" not in [panel.choice for panel in accuracy_panels(experiment(runs[-1]))]
    assert len({look.dash for look in looks([cell.method for cell in one.table[2:]]).values()}) == 3


def test_what_a_method_itself_decides_for_each_pattern_is_not_in_its_label():
    own = {"allocation": "ntk-sap", "places": "balanced"}
    runs = [
        finished("ntk-sap-analytic", 0.75, 0, 0.8, **own),
        finished("ntk-sap-analytic", 0.75, 0, 0.8, allocation="ntk-sap", pattern="2:4"),
        finished("ntk-sap-analytic", 0.75, 0, 0.8, pattern="channel"),
    ]
    labels = {f"ntk-sap-analytic{word}" for word in ("", ", 2:4", ", channel")}
    assert {cell.method for cell in experiment(*runs).table} == labels
    ranked = finished("ntk-sap-analytic", 0.75, 0, 0.8)
    assert {cell.method for cell in experiment(*runs, ranked).table} == {*labels, "ntk-sap-analytic, global scope"}


def test_the_pareto_front_is_what_nothing_dominates():
    points = [(float(7 * k % 11), float(5 * k % 13)) for k in range(40)]
    expected = {
        (cost, accuracy)
        for cost, accuracy in points
        if not any(c <= cost and a >= accuracy and (c, a) != (cost, accuracy) for c, a in points)
    }
    front = pareto_front(points)
    assert set(front) == expected
    assert front == sorted(front)


def records(*losses):
    return [{"epoch": k, "top1": 0.1 * k, "train_loss": loss} for k, loss in enumerate(losses, start=1)]


def learning(*runs):
    one = experiment(*(Run(run.name, "unfinished", run.settings, records=found) for run, found in runs))
    return {
        panel.choice: {chart.title.split(" by ")[0]: chart for chart in panel.charts} for panel in learning_panels(one)
    }


def test_curves_of_one_epoch_are_dots():
    (run,) = seeds("snip", 0.9, 0.8)
    chart = learning((run, records(0.25)))["90 %"]["Training loss"]
    (trace,) = chart.data
    assert (trace["mode"], trace["x"], trace["y"]) == ("markers", [1], [0.25])
    assert trace["meta"] == "snip at 90 %, seed 0"


def test_charts_share_axes_when_they_are_to_be_compared():
    (low,), (high,) = seeds("snip", 0.5, 0.8), seeds("snip", 0.9, 0.8)
    found = learning((low, records(1.0, 1.0)), (high, records(9.0, 9.0)))
    first, second = (found[choice]["Training loss"].layout for choice in ("50 %", "90 %"))
    assert first == second
    assert first["yaxis"]["range"][0] < 1 < 9 < first["yaxis"]["range"][1]


def test_one_legend_entry_switches_all_runs_of_a_method():
    runs = [*seeds("ntk-sap", 0.9, 0.8, 0.7), *seeds("snip", 0.9, 0.8, 0.7, 0.6)]
    chart = learning(*((run, records(1.0, 2.0)) for run in runs))["90 %"]["Training loss"]
    assert [trace["legendgroup"] for trace in chart.data] == ["snip"] * 3 + ["ntk-sap"] * 2  # drawn last, so on top
    assert [trace["name"] for trace in chart.data if trace["showlegend"]] == ["snip", "ntk-sap"]


def test_spectra_leave_out_what_is_zero_up_to_rounding():
    spectra = [Spectrum("dense", 0.0, (4.0, 2.0, 1e-30), 0.0), Spectrum("snip", 0.9, (2.0, 0.5, -1e-9), 0.4)]
    (panel,) = spectra_panels(spectra)
    (chart,) = panel.charts
    assert trace_of(chart, "dense")["y"] == [4.0, 2.0]
    assert trace_of(chart, "snip")["y"] == [2.0, 0.5]
    assert chart.layout["yaxis"]["type"] == "log"


def heat(**rows):
    runs = [finished(method, 0.9, 0, 0.8, layers=layers) for method, layers in rows.items()]
    return chart_of(density_panels(experiment(*runs)), "90 %")


def test_a_heat_map_marks_collapsed_layers_and_colours_by_density():
    chart = heat(snip={"a.weight": 1.0, "b.weight": 0.0, "c.weight": 0.01}, grasp={"a.weight": 1.0, "c.weight": 0.1})
    colours, crosses, numbers = chart.data
    assert (colours["zmin"], colours["zmax"]) == (-2, 0)
    assert colours["z"] == [[0, None, pytest.approx(-2)], [0, None, pytest.approx(-1)]]
    assert colours["customdata"][0] == [
        "snip, a.weight: 100 % kept", "snip, b.weight: nothing kept", "snip, c.weight: 1 % kept"
    ]  # fmt: skip
    assert colours["customdata"][1][2] == "grasp, c.weight: 10 % kept"
    assert (crosses["x"], crosses["y"], crosses["text"]) == ([1], [0], ["snip, b.weight: nothing kept"])
    assert crosses["name"] == "a layer with nothing left"
    assert list(zip(numbers["x"], numbers["y"], numbers["text"], strict=True)) == [
        (0, 0, "100"), (2, 0, "1.0"), (0, 1, "100"), (2, 1, "10")
    ]  # fmt: skip
    assert numbers["textfont"]["color"][:2] == ["#1b1f24", "#ffffff"]  # dark on yellow, white on violet
    assert colours["colorbar"]["ticktext"] == ["100 %", "10 %", "1 %"]
    assert chart.layout["xaxis"]["ticktext"] == ["a", "b", "c"]
    assert chart.layout["yaxis"]["ticktext"] == ["snip", "grasp"]


def test_heat_maps_share_one_scale():
    rows = [{"snip": {"a": 0.5}}, {"snip": {"a": 0.002, "b": 0.0}}]
    assert lowest_density(rows) == pytest.approx(0.001)
    assert lowest_density([]) == 0.1


def test_a_heat_map_of_a_deep_net_stays_readable():
    chart = heat(snip={f"layer{index}.conv.weight": 0.1 for index in range(60)})
    assert chart.min_width > 60 * 18  # it scrolls
    assert len(chart.data) == 1  # no numbers where there is no room for them
