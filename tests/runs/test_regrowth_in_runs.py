"""Runs whose masks change in training."""

import json

import pytest
import torch

from ntksap import InputError, Masks, ntk
from ntksap.data import TABLE, load
from ntksap.models import build
from ntksap.report.experiments import experiments
from ntksap.report.reading import read_folder
from ntksap.runs import DENSE, THIN, grid
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
    assert "regrown" not in start.info
    assert end.info["regrown"] == "rigl"
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
    made = grid("lenet-300-100", "digits", ["random"], [0.9], [0], recipe=regrowing.recipe, thin=True)
    assert [one.name for one in made[:2]] == [small_settings(method).name for method in (DENSE, THIN)]
    assert made[2].recipe == regrowing.recipe


@pytest.mark.parametrize("method", [DENSE, THIN])
def test_what_is_asked_of_masks_is_refused_for_networks_that_have_none(method):
    for given, names in [
        ({"training": RIGL}, r"regrow \(or make it 'none'\)"),
        ({"pattern": "2:4", "rescale": True}, "pattern, rescale"),
        ({"allocation": "erk", "degree_decay": 0.2}, "allocation, degree_decay"),
        ({"sanity": "shuffle"}, "sanity"),
        ({"options": {"draws": 2}, "rounds": 5}, "options, rounds"),
    ]:
        with pytest.raises(InputError, match=f"the {method} network has no masks: omit {names}$"):
            small_settings(method, **given)


def test_a_training_too_short_for_a_change_of_masks_is_refused_before_anything_runs():
    too_short = {"epochs": 10, "training": {"regrow": "set"}}  # 120 steps
    with pytest.raises(InputError, match=r"every 100 steps and only before step 90 of 120\. Lower regrow_every.* to 8"):
        small_settings("random", **too_short)
    assert small_settings("random", epochs=12, training={"regrow": "set"}).recipe.regrow == "set"  # 108 of 144
    assert small_settings("random", epochs=10).recipe.regrow == "none"


def test_the_table_knows_how_many_images_there_are_to_train_on():
    assert TABLE["digits"].images == len(load("digits").train)


def test_a_report_shows_regrowth_beside_the_same_masks_without_it(finished, tmp_path):
    folder, _ = finished
    for settings in (small_settings("random", epochs=2), small_settings(DENSE, epochs=2)):
        run(settings, folder.parent)
    (experiment,) = experiments(read_folder(folder.parent).runs)
    labels = [label for label, _ in experiment.runs]
    assert labels == [DENSE, "random", "random, rigl"]
