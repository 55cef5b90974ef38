"""`ntksap.compare` from Python: what the command does."""

import json

import pytest

import ntksap
from ntksap.cli import main
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


def test_an_option_that_no_method_has_is_an_error(tmp_path):
    with pytest.raises(ntksap.InputError, match="none of snip, synflow has an option 'draws'"):
        ntksap.compare(methods=["snip", "synflow"], options={"draws": 2}, out=tmp_path)
    with pytest.raises(ntksap.InputError, match="Did you mean 'synflow'"):
        ntksap.compare(methods=["synflo"], out=tmp_path)
