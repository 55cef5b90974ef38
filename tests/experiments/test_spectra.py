"""``ntksap spectrum`` from arguments to files."""

import json
import os

import pytest
import torch
import tyro

import ntksap
from ntksap.analysis.spectrum import spectrum_distance
from ntksap.analysis.tangent_kernel import ntk
from ntksap.cli.spectrum import run_spectrum
from ntksap.data import load, pruning_batches
from ntksap.report.figures import spectrum_figure
from ntksap.report.run_files import spectra_of

TINY = ["--model", "lenet-300-100", "--methods", "magnitude,random", "--input-shape", "1", "4", "4", "--inputs", "3"]


def spectrum(*arguments: str) -> None:
    tyro.cli(run_spectrum, args=arguments)


def test_json_and_files_on_real_images(tmp_path, capsys):
    arguments = ["--model", "lenet-300-100", "--data", "digits", "--methods", "snip,magnitude", "--seed", "3"]
    spectrum(*arguments, "--sparsities", "0.5,0.9", "--inputs", "4", "--out", str(tmp_path / "a" / "b"), "--json")
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["data"], result["seed"], result["inputs"]) == ("lenet-300-100", "digits", 3, 4)
    rows = {(one["method"], one["sparsity"]): one for one in result["spectra"]}
    assert list(rows) == [("dense", 0.0), ("snip", 0.5), ("snip", 0.9), ("magnitude", 0.5), ("magnitude", 0.9)]

    data = load("digits")
    model = ntksap.models.build("lenet-300-100", input_shape=(1, 8, 8), seed=3)
    images, _ = next(data.test.batches(4, seed=3))
    batches = pruning_batches(data, seed=3)
    masks = ntksap.prune(model, 0.9, "snip", input_shape=(1, 8, 8), data=batches, seed=3)
    dense, pruned = ntk(model, images, norm="batch"), ntk(model, images, masks, norm="batch")
    row = rows["snip", 0.9]
    assert rows["dense", 0.0]["eigenvalues"] == dense.eigenvalues.tolist()
    assert row["eigenvalues"] == pruned.eigenvalues.tolist()
    assert (row["kept"], row["rank"], row["trace"]) == (masks.kept, pruned.rank, pruned.trace)
    assert row["distance"] == spectrum_distance(pruned.eigenvalues, dense.eigenvalues) > rows["snip", 0.5]["distance"]
    assert row["shape_distance"] < row["distance"]
    assert rows["dense", 0.0]["distance"] == 0

    folder = tmp_path / "a" / "b"
    assert sorted(os.listdir(folder)) == ["spectrum.json", "spectrum.png", "spectrum.svg"]
    assert os.listdir(tmp_path / "a") == ["b"]
    assert json.loads((folder / "spectrum.json").read_text()) == result
    assert (folder / "spectrum.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_names_each_net(capsys):
    spectrum(*TINY, "--sparsities", "0.5")
    printed = capsys.readouterr().out
    for word in ("dense", "magnitude", "random", "50 %", "distance"):
        assert word in printed


def test_noise_depends_on_the_seed_alone(capsys):
    found = []
    for seed, state in (("0", 1), ("0", 2), ("1", 1)):
        torch.manual_seed(state)
        spectrum(*TINY, "--sparsities", "0.5", "--seed", seed, "--json")
        found.append([one["eigenvalues"] for one in json.loads(capsys.readouterr().out)["spectra"]])
    assert found[0] == found[1] != found[2]


@pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning")
def test_a_collapsed_net_is_shown_as_singular(capsys, tmp_path):
    arguments = [*TINY, "--methods", "random", "--sparsities", "0.9999", "--out", str(tmp_path / "run")]
    spectrum(*arguments)
    printed = capsys.readouterr().out
    assert "random*" in printed
    assert "singular" in printed
    row = json.loads((tmp_path / "run" / "spectrum.json").read_text())["spectra"][1]
    assert row["collapsed"]
    assert row["condition_number"] is None


def test_what_cannot_be_done_is_said_before_any_work(tmp_path):
    (tmp_path / "run").mkdir()
    for arguments, message in [
        (["--methods", "snip"], "needs data: add --data"),
        (["--methods", "synflo"], "Did you mean 'synflow'"),
        (["--sparsities", "1.0"], "0 ≤ sparsity < 1"),
        (["--sparsities", "a"], "--sparsities takes numbers"),
        (["--inputs", "0"], "--inputs must be at least 1"),
        (["--data", "digits", "--inputs", "1000"], "360 test images"),
        (["--out", str(tmp_path / "run")], "already exists"),
    ]:
        with pytest.raises(ntksap.NtksapError, match=message):
            spectrum(*TINY, *arguments)
    assert not os.listdir(tmp_path / "run")


def test_the_figure_has_a_panel_per_sparsity_with_the_dense_net_black_in_each():
    methods, sparsities = ("ntk-sap", "synflow"), (0.9, 0.5, 0.98, 0.995)
    spectra = spectra_of(
        {
            "spectra": [
                {"method": "dense", "sparsity": 0, "eigenvalues": [100, 10, 1]},
                *({"method": m, "sparsity": s, "eigenvalues": [9, 1, 0.0]} for m in methods for s in sparsities),
            ]
        }
    )
    figure = spectrum_figure(spectra, "title")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"sparsity {s} %" for s in ("50", "90", "98", "99.5")]
    for axes in panels:
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert lines.keys() == {"dense", *methods}
        assert lines["dense"].get_color() == "black"
        assert list(lines["dense"].get_ydata()) == [100, 10, 1]
        assert list(lines["synflow"].get_ydata()) == [9, 1]  # zero has no place on a logarithmic axis
        assert axes.get_yscale() == "log"
    assert len(figure.legends[0].get_texts()) == 3


def test_from_python_it_does_what_the_command_does(tmp_path, capsys):
    spectrum(*TINY, "--sparsities", "0.5", "--out", str(tmp_path / "a"), "--json")
    printed = json.loads(capsys.readouterr().out)
    steps = []
    found = ntksap.spectrum(
        "lenet-300-100",
        ["magnitude", "random"],
        [0.5],
        input_shape=(1, 4, 4),
        inputs=3,
        out=tmp_path / "b",
        on_progress=steps.append,
    )
    times = {"prune_seconds", "kernel_seconds"}
    for result in (printed, found):
        result["spectra"] = [{key: one[key] for key in one.keys() - times} for one in result["spectra"]]
    assert found == printed
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(tmp_path / "b"))
    assert [(one.done, one.name) for one in steps if one.unit == "net"] == [
        (0, "dense"),
        (1, "magnitude at 50 %"),
        (2, "random at 50 %"),
        (3, ""),
    ]


def test_a_module_of_ones_own_is_taken_as_it_is():
    module = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = ntksap.spectrum(module, ["magnitude"], [0.5], input_shape=(4,), inputs=3, dtype="float64")
    assert found["model"] == "Sequential"
    assert len(found["spectra"][1]["eigenvalues"]) == 6
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    with pytest.raises(ntksap.InputError, match="input-shape"):
        ntksap.spectrum(module, ["magnitude"], [0.5])
