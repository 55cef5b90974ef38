"""What methods are called: a setting is named where runs differ in it, and only if it is not the usual one."""

from ntksap.report.charts import accuracy_panels, density_panels
from ntksap.report.experiments import experiments
from ntksap.report.labels import method_labels
from ntksap.runs import settings_for
from ntksap.training import load_recipe
from tests.report.finished_runs import RECIPE, finished


def labels(*runs):
    (one,) = experiments(runs)
    return one.methods


def test_imp_is_one_method_though_its_sparsity_decides_how_many_rounds_it_takes():
    runs = [finished("imp", sparsity, 0, 0.9, rounds=rounds) for sparsity, rounds in ((0.9, 11), (0.95, 14))]
    (one,) = experiments(runs)
    assert [(cell.method, cell.sparsity) for cell in one.table] == [("imp", 0.9), ("imp", 0.95)]
    assert labels(*runs, finished("imp", 0.9, 0, 0.8, rounds=3)) == ["imp", "imp, rounds 3"]


def test_what_is_usual_is_not_said():
    rigl = {**RECIPE, "regrow": "rigl", "regrow_every": 5}
    runs = [
        finished("snip", 0.9, 0, 0.5, rounds=1),
        finished("snip", 0.9, 0, 0.6, rounds=1, allocation="erk"),
        finished("snip", 0.9, 0, 0.7, rounds=1, degree_decay=0.2),
        finished("snip", 0.9, 0, 0.8, rounds=1, recipe=rigl),
        finished("random-erk", 0.9, 0, 0.8, rounds=1, allocation="erk"),
    ]
    found = labels(*runs)
    assert found == ["snip", "snip, degree decay 0.2", "snip, erk", "snip, rigl", "random-erk"]


def test_a_method_all_of_whose_runs_regrow_says_so_beside_one_that_does_not():
    rigl = {**RECIPE, "regrow": "rigl"}
    assert labels(finished("snip", 0.9, 0, 0.5), finished("random", 0.9, 0, 0.5, recipe=rigl)) == [
        "random, rigl",
        "snip",
    ]


def test_how_often_masks_regrow_is_said_only_among_those_that_do():
    runs = [finished("snip", 0.9, 0, 0.5, recipe=RECIPE)]
    ways = [{**RECIPE, "regrow": "set", "regrow_every": every} for every in (5, 50)]
    runs += [finished("snip", 0.9, 0, 0.5, recipe=recipe) for recipe in ways]
    assert labels(*runs) == ["snip", "snip, set, regrow every 5", "snip, set, regrow every 50"]


def test_a_ranking_in_place_of_a_methods_own_allocation_is_said():
    recipe = load_recipe("quick")
    common = {"model": "resnet8", "data": "digits", "method": "ntk-sap-analytic", "seed": 0, "recipe": recipe}
    given = [{}, {"scope": "global"}, {"scope": "layer"}, {"degree_decay": 0.2}, {"pattern": "2:4"}]
    made = [settings_for(sparsity=0.75, **common, **own).plain() for own in given]
    assert [label.removeprefix("ntk-sap-analytic") for label in method_labels(made)] == [
        "", ", global scope", ", layer scope", ", degree decay 0.2", ", 2:4",
    ]  # fmt: skip


def test_no_legend_gives_two_methods_one_name():
    ends = [{"allocation": "erk-logits", "degree_decay": decay} for decay in (0.2, 0.25)]
    runs = [finished("ntk-sap-analytic", 0.9, 0, 0.8, recipe={**RECIPE, "regrow": "rigl"}, **end) for end in ends]
    (one,) = experiments([*runs, finished("snip", 0.9, 0, 0.8)])
    for panels in (accuracy_panels(one), density_panels(one)):
        for chart in (chart for panel in panels for chart in panel.charts):
            shown = [t["name"] for t in chart.data if t.get("showlegend") and t["name"] != "Pareto front"]
            names = chart.layout["yaxis"].get("ticktext", shown)
            assert len(names) == len(set(names)) == 3
            assert max(len(part) for name in names for part in name.split("<br>")) <= 34


def test_runs_that_differ_in_nothing_but_the_seed_are_compared_once(monkeypatch):
    calls = []
    monkeypatch.setattr("ntksap.report.labels._compared", lambda *all_: calls.append(1) or True)
    runs = [finished("snip", 0.9, seed, 0.8).settings for seed in range(1000)]
    assert set(method_labels(runs)) == {"snip"}
    assert len(calls) < 100


def test_thin_networks_are_told_apart_by_what_is_equal():
    runs = [
        finished("thin", 0.9, 0, 0.5),
        finished("thin", 0.9, 0, 0.6, budget="multiply-adds", allocation="ntk-sap"),
        finished("random-erk", 0.9, 0, 0.7, rounds=1, allocation="erk"),
    ]
    assert labels(*runs) == ["thin", "thin, equal multiply-adds", "random-erk"]
    both = [*runs, finished("thin", 0.9, 0, 0.6, budget="multiply-adds", allocation="erk")]
    assert labels(*both)[1:3] == ["thin, erk, equal multiply-adds", "thin, ntk-sap, equal multiply-adds"]
