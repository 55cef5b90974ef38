"""Runs whose masks change in training."""

import json

import pytest
import torch

from ntksap import InputError, Masks, ntk
from ntksap.data import load
from ntksap.models import build
from ntksap.report.experiments import experiments
from ntksap.report.reading import read_folder
from ntksap.runs import DENSE
from ntksap.runs.execution import run
from ntksap.runs.folder import Place, read_result
from ntksap.runs.spectra import spectra_during
from ntksap.runs.store import Store
from ntksap.training.checkpoint import read_model
from tests.runs.small_runs import small_settings

RIGL = {"regrow": "rigl", "regrow_every": 5}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    settings = small_settings("random", epochs=2, training=RIGL)
    return root / settings.name, run(settings, root, Place(keep_epochs=(0, 1)))


def test_levels_of_imp_hold_their_masks_and_the_training_after_them_regrows(tmp_path):
    plan = {"epochs": 2, "rounds": 2}
    results = [run(small_settings("imp", training=how, **plan), tmp_path) for how in ({}, RIGL)]
    assert results[0]["mask_sha256"] == results[1]["mask_sha256"] != results[1]["final_mask_sha256"]


def test_a_run_keeps_the_masks_it_began_with_and_those_it_ended_with(finished):
    folder, result = finished
    start, end = (Masks.load(folder / f"{name}.safetensors") for name in ("masks", "masks-final"))
    assert start != end
    assert [layer["kept"] for layer in start.layers()] == [layer["kept"] for layer in end.layers()]
    assert (result["mask_sha256"], result["final_mask_sha256"]) == (start.sha256, end.sha256)
    assert end.info["model"] == "lenet-300-100"  # so that `ntksap diagnose` knows what they are for
    model = build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8))
    read_model(folder / "checkpoint.safetensors", model)
    assert end.obeyed_by(model)


def test_a_run_that_lost_its_last_file_makes_it_again(finished):
    folder, result = finished
    for name in ("masks-final.safetensors", "result.json"):
        (folder / name).unlink()
    settings = small_settings("random", epochs=2, training=RIGL)
    again = run(settings, folder.parent)
    assert again["final_mask_sha256"] == result["final_mask_sha256"]
    assert Masks.load(folder / "masks-final.safetensors").sha256 == result["final_mask_sha256"]


def test_spectra_during_training_are_those_of_the_masks_of_the_time(finished):
    folder, _ = finished
    found = spectra_during(folder, inputs=4)
    model = build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8))
    _, masks = read_model(folder / "epoch-0001.safetensors", model)
    assert Masks(masks) != Masks.load(folder / "masks.safetensors")
    images, _ = next(load("digits").test.batches(4))
    expected = ntk(model, images, masks).eigenvalues
    assert torch.allclose(torch.tensor(found["epochs"][1]["eigenvalues"]), expected.float(), rtol=1e-3)


def test_a_store_holds_both_masks(finished, tmp_path):
    folder, _ = finished
    store = Store(f"file://{tmp_path / 'store'}")
    store.check()
    store.publish(folder)
    assert store.fetch(folder.name, tmp_path / "elsewhere") == read_result(folder)
    for name in ("masks", "masks-final"):
        copied, own = (root / f"{name}.safetensors" for root in (tmp_path / "elsewhere" / folder.name, folder))
        assert copied.read_bytes() == own.read_bytes()


def test_a_pattern_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="would break the pattern 2:4"):
        small_settings("magnitude", training=RIGL, pattern="2:4")


def test_runs_without_regrowth_and_dense_ones_are_named_as_ever():
    plain, regrowing = small_settings("random"), small_settings("random", training=RIGL)
    assert plain.name != regrowing.name
    assert "regrow" not in json.dumps(plain.recipe.stated())
    assert small_settings(DENSE, training=RIGL).name == small_settings(DENSE).name


def test_a_report_shows_regrowth_beside_the_same_masks_without_it(finished, tmp_path):
    folder, _ = finished
    for settings in (small_settings("random", epochs=2), small_settings(DENSE, epochs=2)):
        run(settings, folder.parent)
    (experiment,) = experiments(read_folder(folder.parent).runs)
    labels = [label for label, _ in experiment.runs]
    assert labels == [DENSE, "random regrow=none", "random regrow=rigl regrow_every=5"]
