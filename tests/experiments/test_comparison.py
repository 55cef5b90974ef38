"""`ntksap.compare` from Python: what the command does."""

import json
import shutil

import pytest

import ntksap
from ntksap.cli import main
from ntksap.report import build_report
from ntksap.runs import grid
from ntksap.training import load_recipe

SHORT = {"epochs": 2, "channels_last": False}


def test_from_python_it_does_what_the_command_does(tmp_path, capsys):
    arguments = ["--model", "lenet-300-100", "--methods", "magnitude,ntk-sap-s", "--sparsities", "0.5,0.9"]
    arguments += ["--epochs", "2", "--no-channels-last", "--draws", "1", "--batch", "4", "--jobs", "2"]
    assert main(["compare", *arguments, "--out", str(tmp_path / "a"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    events = []
    found = ntksap.compare(
        "lenet-300-100",
        "digits",
        ["magnitude", "ntk-sap-s"],
        [0.5, 0.9],
        recipe_settings=SHORT,
        options={"draws": 1, "batch": 4},
        jobs=2,
        out=tmp_path / "b",
        on_event=events.append,
    )
    assert [cell.method for cell in found.table] == ["dense", *["magnitude"] * 2, *["ntk-sap-s"] * 2]
    assert [(r["name"], r["top1"]) for r in found.results] == [(r["name"], r["top1"]) for r in printed["results"]]
    assert found.failed == {}
    assert sum(event.kind == "finished" for event in events) == 5
    assert {event.runs for event in events} == {5}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {path.name for path in (tmp_path / "b").iterdir()}
    again = ntksap.compare(
        "lenet-300-100",
        methods=["magnitude"],
        sparsities=[0.9],
        recipe=load_recipe("quick"),
        recipe_settings=SHORT,
        out=tmp_path / "b",
        on_event=lambda event: pytest.fail(event.kind) if event.kind != "skipped" else None,
    )
    assert [cell.method for cell in again.table] == ["dense", "magnitude"]


def test_runs_that_fail_are_in_the_record(tmp_path):
    found = ntksap.compare("lenet-300-100", "cifar10", ["random"], jobs=1, out=tmp_path, data_dir=tmp_path / "nowhere")
    assert found.table == found.results == []
    assert len(found.failed) == 2
    assert all("NTKSAP_DATA" in error for error in found.failed.values())
    assert len(json.loads((tmp_path / "results.json").read_text())["failed"]) == 2


def test_the_grid_has_the_dense_network_once_per_seed_and_each_method_with_the_options_that_it_has():
    recipe = load_recipe("quick")
    made = grid(
        "resnet8", "digits", ["snip", "ntk-sap"], [0.9], [0, 1], recipe=recipe, sanity=["invert"], options={"draws": 2}
    )
    assert [(one.label, one.seed) for one in made] == [
        (label, seed) for label in ("dense", "snip", "snip (invert)", "ntk-sap", "ntk-sap (invert)") for seed in (0, 1)
    ]
    assert {one.options.get("draws") for one in made if one.method == "ntk-sap"} == {2}
    assert all("draws" not in one.options for one in made if one.method == "snip")


def test_the_grid_of_patterns_has_thin_networks_and_random_channels_at_the_same_widths():
    recipe = load_recipe("quick")
    made = grid(
        "resnet8", "digits", ["snip"], [0.5, 0.9], [0], recipe=recipe, patterns=["unstructured", "channel", "2:4"],
        thin=True, budget="multiply-adds", round_to=2,
    )  # fmt: skip
    found = [(one.method, one.sparsity, one.pattern, one.places, one.budget, one.round_to) for one in made]
    assert found == [
        ("dense", 0.0, "", "score", "weights", 1),
        *[("thin", s, "", "score", "multiply-adds", 1) for s in (0.5, 0.9)],
        *[("snip", s, "", "score", "weights", 1) for s in (0.5, 0.9)],
        *[("snip", s, "channel", "score", "multiply-adds", 2) for s in (0.5, 0.9)],
        *[("snip", s, "channel", "random", "multiply-adds", 2) for s in (0.5, 0.9)],
        *[("snip", s, "2:4", "score", "weights", 1) for s in (0.5, 0.9)],
    ]
    assert len({one.name for one in made}) == len(made)
    assert not any(one.allocation for one in made)  # whole channels leave the share of multiply-adds that is asked for
    with pytest.raises(ntksap.InputError, match="for whole channels or the thin network"):
        grid("resnet8", "digits", ["snip"], [0.5], [0], recipe=recipe, budget="multiply-adds")


def test_the_thin_network_has_as_many_multiply_adds_as_the_single_weights_beside_it():
    def rules(budget, **pruning):
        recipe = load_recipe("quick")
        made = grid("resnet8", "digits", ["snip"], [0.9], [0], recipe=recipe, thin=True, budget=budget, **pruning)
        return [one.allocation for one in made if one.method == "thin"]

    assert rules("multiply-adds") == ["ntk-sap"]
    assert rules("multiply-adds", allocation="erk") == ["erk"]
    assert rules("weights", allocation="erk") == [""]


def test_what_patterns_buy_is_measured_once_and_stands_beside_the_thin_network(tmp_path):
    def compared():
        return ntksap.compare(
            "resnet8-w4",
            methods=["magnitude"],
            sparsities=[0.6],
            patterns=["unstructured", "channel"],
            thin=True,
            recipe_settings={"epochs": 1, "channels_last": False},
            jobs=1,
            out=tmp_path,
        )

    found = compared()
    labels = ["dense", "thin", "magnitude", "magnitude, channel", "magnitude, channel, at random"]
    assert [cell.method for cell in found.table] == labels
    by_label = dict(zip(labels, found.table, strict=True))
    assert all(cell.inference_1 > 0 and cell.speedup_step_64 > 0 for cell in found.table)
    assert by_label["magnitude, channel"].kept == by_label["magnitude, channel, at random"].kept
    assert by_label["magnitude, channel"].bytes < by_label["magnitude"].bytes
    assert by_label["magnitude"].bytes < by_label["dense"].bytes
    total = found.results[-1]["total"]
    assert abs(by_label["thin"].kept - 0.4 * total) < 0.2 * total
    head, *rows = (tmp_path / "table.csv").read_text().splitlines()
    assert "speedup_inference_64" in head
    assert len(rows) == 5
    page = (tmp_path / "report.html").read_text()
    assert "Accuracy against time of training".lower() in page.lower()
    assert "magnitude, channel, at random" in page
    files = {path: path.read_bytes() for path in tmp_path.glob("runs/*/timings.json")}
    assert len(files) == 5
    assert compared().table == found.table
    assert {path: path.read_bytes() for path in files} == files
    broken = next(iter(files))
    broken.write_text("{}")
    with pytest.raises(ntksap.NtksapError, match="measures again"):
        compared()


def test_random_channels_are_left_out_where_a_method_chooses_weights_for_its_own():
    made = grid(
        "resnet8", "digits", ["snip", "imp"], [0.5], [0], recipe=load_recipe("quick"), patterns=["channel"], thin=True
    )
    found = [(one.method, one.places) for one in made]
    assert found == [(m, "score") for m in ("dense", "thin", "snip")] + [("snip", "random"), ("imp", "score")]
    with pytest.raises(ntksap.InputError, match="places must be 'score'"):
        grid("resnet8", "digits", ["imp"], [0.5], [0], recipe=load_recipe("quick"), places="random")


def test_networks_without_masks_are_no_methods_and_at_least_one_method_is_needed(tmp_path):
    for methods, message in [
        (["snip", "thin"], "the thin network is added by --thin"),
        (["dense", "snip"], "the dense network is always included"),
        ([], "methods is empty"),
    ]:
        with pytest.raises(ntksap.InputError, match=message):
            ntksap.compare(methods=methods, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["report.html", "table.csv", "results.json"])
def test_files_that_no_comparison_wrote_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("{}")
    run = tmp_path / "runs" / "a-run-of-train"  # whose folder is by chance where those of a comparison would be
    run.mkdir(parents=True)
    (run / "settings.toml").touch()
    with pytest.raises(ntksap.InputError, match=f"holds {name}, which would be replaced and which no comparison wrote"):
        ntksap.compare("lenet-300-100", methods=["random"], out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {name, "runs"}


def test_files_of_a_comparison_are_replaced_even_where_no_run_was_seen(tmp_path):
    given = {"model": "lenet-300-100", "data": "cifar10", "methods": ["random"], "jobs": 1, "data_dir": tmp_path / "no"}
    ntksap.compare(**given, out=tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "runs")
    assert len(ntksap.compare(**given, out=tmp_path / "out").failed) == 2
    (tmp_path / "page").mkdir()
    build_report(tmp_path / "out", tmp_path / "page" / "report.html")  # as `ntksap report` does
    assert len(ntksap.compare(**given, out=tmp_path / "page").failed) == 2


def test_an_option_that_no_method_has_is_an_error(tmp_path):
    with pytest.raises(ntksap.InputError, match="none of snip, synflow has an option 'draws'"):
        ntksap.compare(methods=["snip", "synflow"], options={"draws": 2}, out=tmp_path)
    with pytest.raises(ntksap.InputError, match="Did you mean 'synflow'"):
        ntksap.compare(methods=["synflo"], out=tmp_path)
