"""``ntksap reproduce`` from a plan to files: each kind really runs, on digits."""

import json
import shutil
from pathlib import Path

import pytest

import ntksap
from ntksap.analysis.budget import PAPER_PASSES, paper_budget
from ntksap.cli import main
from ntksap.data import load, pruning_batches
from ntksap.paper.kinds import carry_out
from ntksap.paper.plan import plan_names, read_plan, sparsity_at
from tests.paper.small_plans import PANEL, small_bench, small_plan

SHAPE = (1, 8, 8)
MASKS = """
steps = [2, 10]
seeds = [0, 1]
rows = [{ method = "snip" }, { method = "synflow", rounds = 3 }]
[panels.reported]
snip = [100000.0, 20000.0]
"""


def reproduced(plan: Path | str, out: Path, data_dir: Path | None = None) -> dict:
    found = carry_out(read_plan(plan, "quick"), small_bench(out, data_dir))
    return json.loads(json.dumps(found.to_json()))


def at(found: dict, row: str, column: str) -> dict:
    (entry,) = [one for one in found["entries"] if (one["row"], one["column"]) == (row, column)]
    return entry


def test_inference_flops_are_those_of_the_masks(tmp_path):
    found = reproduced(small_plan(tmp_path, "inference-flops", MASKS), tmp_path / "out")
    costs = []
    for seed in (0, 1):
        model = ntksap.models.build("lenet-300-100", input_shape=SHAPE, seed=seed)
        batches = pruning_batches(load("digits"), seed=seed)
        masks = ntksap.prune(model, sparsity_at(10), "snip", input_shape=SHAPE, data=batches, seed=seed)
        costs.append(ntksap.cost(model, masks, input_shape=SHAPE).sparse)
    entry = at(found, "snip", "89.26 %")
    assert entry["ours"] == pytest.approx(sum(costs) / 2)
    assert entry["std"] == pytest.approx(abs(costs[0] - costs[1]) / 2**0.5)
    assert entry["agreement"] == pytest.approx(entry["ours"] / 20000)
    assert at(found, "synflow", "89.26 %")["paper"] is None

    folder = tmp_path / "out" / "small-inference-flops-quick"
    assert {path.name for path in folder.iterdir()} == {
        "comparison.json",
        "comparison.md",
        "flops-digits.png",
        "flops-digits.svg",
    }
    assert json.loads((folder / "comparison.json").read_text())["entries"] == found["entries"]
    page = (folder / "comparison.md").read_text()
    assert "| snip | ours |" in page
    assert f"| {entry['agreement']:.3f} |" in page


def test_a_second_plan_uses_the_masks_of_the_first_and_lost_ones_are_made_again(tmp_path):
    out = tmp_path / "out"
    first = reproduced(small_plan(tmp_path, "inference-flops", MASKS), out)
    kept = {path: path.stat().st_mtime_ns for path in out.glob("masks/*/result.json")}
    assert len(kept) == 8
    lost = next(path for path in kept if "synflow" in str(path))
    shutil.rmtree(lost.parent)
    total = reproduced(small_plan(tmp_path, "total-flops", MASKS), out)
    again = {path: path.stat().st_mtime_ns for path in out.glob("masks/*/result.json")}
    assert {path for path in kept if again[path] != kept[path]} == {lost}
    dense = ntksap.cost(ntksap.models.build("lenet-300-100", input_shape=SHAPE), input_shape=SHAPE).dense
    sparse = at(first, "snip", "36.00 %")["ours"]
    assert at(total, "snip", "36.00 %")["ours"] == paper_budget("snip", dense, sparse, epochs=2, images=1437).total


def test_pruning_flops(tmp_path):
    body = 'columns = ["multiply-adds"]\nrows = [{ method = "snip" }, { method = "force" }]'
    found = reproduced(small_plan(tmp_path, "pruning-flops", body), tmp_path / "out")
    dense = ntksap.cost(ntksap.models.build("lenet-300-100", input_shape=SHAPE), input_shape=SHAPE).dense
    assert at(found, "snip", "multiply-adds")["ours"] == PAPER_PASSES["snip"] * dense
    assert found["missing"] == [{"panel": "digits", "row": "force", "reason": "the paper does not count it"}]


ACCURACY = """
steps = [10]
rows = [
    { method = "iterative-snip", rounds = 3 },
    { method = "iterative-snip", label = "linear iterative-snip", rounds = 3, schedule = "linear" },
    { method = "no-such-method" },
]
[panels.reported]
dense = [97.0]
iterative-snip = [90.0]
"""


def test_accuracy_trains_and_ends_with_a_report(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["reproduce", str(small_plan(tmp_path, "accuracy", ACCURACY)), "--out", str(out), "--seeds", "0,1"]
    assert main([*command, "--jobs", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["row"] for one in found["missing"]] == ["no-such-method"]
    assert "unknown method" in found["missing"][0]["reason"]
    results = [json.loads(path.read_text()) for path in out.glob("runs/*/result.json")]
    assert len(results) == 6  # dense and two schedules, two seeds each
    for label, schedule in (("iterative-snip", "exponential"), ("linear iterative-snip", "linear")):
        top1 = [r["top1"] for r in results if r["method"] == "iterative-snip" and r["schedule"] == schedule]
        assert at(found, label, "89.26 %")["ours"] == pytest.approx(100 * sum(top1) / 2)
    assert at(found, "iterative-snip", "89.26 %")["agreement"] == pytest.approx(
        at(found, "iterative-snip", "89.26 %")["ours"] - 90
    )
    assert at(found, "dense", "dense")["paper"] == 97.0
    folder = out / "small-accuracy-quick"
    assert (folder / "accuracy-digits.png").read_bytes().startswith(b"\x89PNG")
    assert "lenet-300-100 on digits" in (folder / "report.html").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == found
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")} == before


def test_finished_runs_are_shown_whatever_their_number_without_data_or_training(tmp_path):
    body = """
steps = [2, 10]
rows = [{ method = "magnitude" }, { method = "random" }]
reported_steps = [10]
reported = { magnitude = [77.0] }
"""
    plan, out = small_plan(tmp_path, "accuracy", body), tmp_path / "out"
    whole = reproduced(plan, out)
    for one in (out / "runs").glob("*random-89*"):
        (one / "result.json").unlink()
    found = ntksap.reproduce(plan, finished=out / "runs", data_dir=tmp_path / "nothing", out=tmp_path / "shown")
    shown = json.loads(json.dumps(found.to_json()))
    assert shown["entries"] == [one for one in whole["entries"] if (one["row"], one["column"]) != ("random", "89.26 %")]
    assert at(shown, "magnitude", "89.26 %")["paper"] == 77.0
    assert at(shown, "magnitude", "36.00 %")["paper"] is None
    assert shown["missing"] == []
    assert "Of the 5 runs of this plan, 4 are finished and shown here." in shown["remarks"]


def test_training_accuracy_is_another_metric_of_the_same_runs(tmp_path):
    body = 'steps = [10]\nmetric = "train_accuracy"\nrows = [{ method = "magnitude" }]'
    found = reproduced(small_plan(tmp_path, "accuracy", body), tmp_path / "out")
    (result,) = [json.loads(p.read_text()) for p in (tmp_path / "out").glob("runs/*magnitude*/result.json")]
    assert at(found, "magnitude", "89.26 %")["ours"] == pytest.approx(100 * result["train_accuracy"])
    assert any("figure only" in sentence for sentence in found["remarks"])


def test_spectra_at_initialisation(tmp_path):
    body = 'steps = [10]\ninputs = 4\nrows = [{ method = "magnitude" }, { method = "random" }]'
    plan, out = small_plan(tmp_path, "spectrum", body), tmp_path / "out"
    found = reproduced(plan, out)
    model = ntksap.models.build("lenet-300-100", input_shape=SHAPE)
    images, _ = next(load("digits").test.batches(4, seed=0))
    masks = ntksap.prune(model, sparsity_at(10), "magnitude", input_shape=SHAPE)
    spectra = [ntksap.ntk(model, images, m, norm="batch").eigenvalues for m in (masks, None)]
    ours = at(found, "magnitude", "89.26 %")["ours"]
    assert ours == pytest.approx(ntksap.spectrum_distance(*spectra))
    folder = out / "small-spectrum-quick"
    assert {"spectrum.json", "spectrum.png"} <= {path.name for path in folder.iterdir()}
    assert any("test images of digits" in sentence for sentence in found["remarks"])

    # a spectrum that is there is not computed again, a lost one is
    (lost,) = out.glob("spectra/*magnitude*.json")
    (kept,) = out.glob("spectra/*random*.json")
    time = kept.stat().st_mtime_ns
    lost.unlink()
    assert reproduced(plan, out)["entries"] == found["entries"]
    assert lost.exists()
    assert kept.stat().st_mtime_ns == time


@pytest.mark.parametrize("kind", ["spectrum-during", "relative-spectrum-during"])
def test_spectra_during_training(tmp_path, kind):
    body = 'steps = [10]\ninputs = 4\nepochs = [0, 2]\nrows = [{ method = "magnitude" }]'
    found = reproduced(small_plan(tmp_path, kind, body), tmp_path / "out")
    spectra = json.loads((tmp_path / "out" / f"small-{kind}-quick" / "spectra.json").read_text())["runs"]
    assert list(spectra) == ["dense", "magnitude"]
    assert [one["epoch"] for one in spectra["magnitude"]["epochs"]] == [0, 2]
    last = spectra["magnitude"]["epochs"][1]["eigenvalues"]
    assert at(found, "magnitude", "epoch 2")["ours"] == pytest.approx(last[0] / (sum(last[-4:]) / 4))
    assert (tmp_path / "out" / f"small-{kind}-quick" / "spectra.png").exists()


def test_time_to_prune_in_seconds_and_epochs(tmp_path):
    body = """
columns = ["seconds", "epochs"]
rows = [{ method = "snip" }, { method = "synflow", rounds = 30, quick = { rounds = 3, times = 10 } }]
[panels.reported]
"one epoch" = [10.0, 1]
snip = [1.0, 0.1]
"""
    plan, out = small_plan(tmp_path, "pruning-time", body), tmp_path / "out"
    found = reproduced(plan, out)
    epoch, snip = at(found, "one epoch", "seconds")["ours"], at(found, "snip", "seconds")["ours"]
    assert epoch > 0
    assert at(found, "snip", "epochs")["ours"] == pytest.approx(snip / epoch)
    assert at(found, "snip", "seconds")["agreement"] == pytest.approx(snip)
    (kept,) = [json.loads(path.read_text()) for path in out.glob("times/*synflow*.json")]
    assert kept["rounds"] == 3
    assert at(found, "synflow", "seconds")["ours"] == pytest.approx(10 * kept["seconds"])
    assert "digits, synflow: 3 rounds timed, times 10." in found["remarks"]
    assert reproduced(plan, out) == found  # measured once


def test_an_absent_data_set_costs_the_rows_that_need_it(tmp_path):
    panel, out, nowhere = PANEL.replace('data = "digits"', 'data = "cifar10"'), tmp_path / "out", tmp_path / "nowhere"
    found = reproduced(small_plan(tmp_path, "inference-flops", MASKS, panel=panel), out, nowhere)
    assert {one["row"] for one in found["entries"]} == {"synflow"}
    (missing,) = found["missing"]
    assert missing["row"] == "snip"
    assert "NTKSAP_DATA" in missing["reason"]
    found = reproduced(small_plan(tmp_path, "accuracy", ACCURACY, panel=panel), out, nowhere)
    assert found["entries"] == []
    assert len(found["missing"]) == 3
    assert not (out / "runs").exists()

    body = 'steps = [10]\ninputs = 2\nrows = [{ method = "random" }]'
    found = reproduced(small_plan(tmp_path, "spectrum", body, panel=panel), out, nowhere)
    assert any("2 inputs of noise" in sentence for sentence in found["remarks"])


def test_facts_that_agree_with_the_paper(tmp_path):
    found = reproduced("hyper-parameters", tmp_path)
    assert len(found["entries"]) == 40
    assert all(entry["agreement"] is True for entry in found["entries"])
    found = reproduced("overview", tmp_path)
    assert len(found["entries"]) >= 18
    assert all(entry["agreement"] is True for entry in found["entries"])


def test_the_papers_pruning_flops_are_met(tmp_path):
    found = reproduced("pruning-flops", tmp_path)
    assert len(found["entries"]) == 18
    assert all(entry["agreement"] == pytest.approx(1, abs=0.005) for entry in found["entries"])


def test_the_list_names_all_plans(capsys):
    assert main(["reproduce", "--list", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert sorted(plan["name"] for plan in plans) == plan_names()
    assert {plan["name"] for plan in plans if plan["scales"] == ["paper"]} == {"imagenet", "snip-variants-imagenet"}
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in plan_names())


def test_the_table_puts_ours_over_the_papers(tmp_path, capsys):
    assert main(["reproduce", "pruning-flops", "--panels", "cifar10,cifar100", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "2.48e+11" in printed
    assert "tiny-imagenet" not in printed
    assert "The paper: SynFlow costs the least" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--list"),
        (["main-comparisn"], "Did you mean 'main-comparison'"),
        (["imagenet"], "--scale paper"),
        (["pruning-time", "--panels", "imagenet-resnet50"], "--scale paper"),
        (["pruning-time", "--panels", "imagenet"], "unknown panel"),
        (["overview", "--jobs", "0"], "at least 1"),
        (["pruning-flops", "--finished", "runs"], "omit --finished"),
        (["main-comparison", "--finished", "no-such-folder"], "no such folder"),
    ],
)
def test_what_cannot_be_done_says_so(arguments, message, capsys, tmp_path):
    assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_method_that_chooses_weights_has_its_spectrum_at_those_in_plans_and_in_the_command_alike(tmp_path, capsys):
    options = "rounds = 20, options = { epoch_steps = 1, kernel = 'projected', projections = 2 }"
    body = f'steps = [10]\ninputs = 4\nrows = [{{ method = "ntt", {options} }}]'
    found = reproduced(small_plan(tmp_path, "spectrum", body), tmp_path / "out")
    (file,) = (tmp_path / "out").glob("masks/*/masks.safetensors")
    masks = ntksap.Masks.load(file)
    model = ntksap.models.build("lenet-300-100", input_shape=SHAPE)
    images, _ = next(load("digits").test.batches(4, seed=0))
    dense, at_initial_weights = (ntksap.ntk(model, images, m, norm="batch").eigenvalues for m in (None, masks))
    masks.load_weights(model)
    pruned = ntksap.ntk(model, images, masks, norm="batch").eigenvalues
    ours = at(found, "ntt", "89.26 %")["ours"]
    assert ours == pytest.approx(ntksap.spectrum_distance(pruned, dense))
    assert ours != pytest.approx(ntksap.spectrum_distance(at_initial_weights, dense))


def test_from_python_it_does_what_the_command_does(tmp_path, capsys):
    assert main(["reproduce", "pruning-flops", "--panels", "cifar10", "--out", str(tmp_path / "a"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = ntksap.reproduce("pruning-flops", panels=["cifar10"], out=tmp_path / "b")
    assert json.loads(json.dumps(found.to_json())) == {key: printed[key] for key in printed if key != "out"}
    for name in ("comparison.json", "comparison.md"):
        texts = [(tmp_path / part / "pruning-flops-quick" / name).read_text() for part in ("a", "b")]
        assert texts[0] == texts[1]


def test_from_python_progress_comes_through_callbacks(tmp_path):
    body = 'steps = [10]\ninputs = 4\nrows = [{ method = "magnitude" }]'
    events, steps = [], []
    ntksap.reproduce(
        small_plan(tmp_path, "spectrum", body),
        out=tmp_path / "out",
        jobs=1,
        on_event=events.append,
        on_progress=steps.append,
    )
    assert [event.kind for event in events if event.kind != "progress"] == ["started", "finished"]
    assert {event.runs for event in events} == {1}
    assert [(one.done, one.total) for one in steps if one.unit == "net"] == [(0, 2), (1, 2), (2, 2)]
