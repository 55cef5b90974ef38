"""Methods that train before they prune, or choose the weights to start from, inside a run."""

import shutil

import pytest
import torch

import ntksap
from ntksap import Masks, models
from ntksap.data import load
from ntksap.runs.execution import run
from ntksap.runs.folder import Place
from ntksap.runs.masking import make_masks, pruning_data
from ntksap.runs.settings import pruning_for, settings_for
from ntksap.training.checkpoint import read_model
from ntksap.training.recipe import Recipe, load_recipe
from tests.runs.small_runs import outcome, small_settings

NTT = {"rounds": 3, "options": {"epoch_steps": 2, "kernel": "projected", "projections": 2, "prune_lr": 0.01}}
PLANS = {"ntt": NTT, "dpai": {"options": {"round_steps": 2}}, "imp": {"options": {"rewind_epoch": 1}}}


def test_a_run_trains_from_the_weights_that_ntt_chose(tmp_path):
    settings = small_settings("ntt", epochs=1, **NTT)
    run(settings, tmp_path, Place(keep_epochs=(0,)))
    masks = Masks.load(tmp_path / settings.name / "masks.safetensors")
    assert masks.info["kernel"] == "projected 2 times"
    model = models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8), seed=0)
    initial = model[1].weight.detach().clone()
    read_model(tmp_path / settings.name / "epoch-0000.safetensors", model)
    expected = masks.weights["1.weight"] * masks["1.weight"]
    assert torch.equal(model[1].weight, expected)
    assert not torch.equal(expected, initial * masks["1.weight"])


def test_reinit_trains_from_fresh_weights_not_from_those_of_ntt(tmp_path):
    results = [run(small_settings("ntt", epochs=1, sanity=s, **NTT), tmp_path) for s in ("none", "reinit", "shuffle")]
    assert results[0]["mask_sha256"] == results[1]["mask_sha256"] != results[2]["mask_sha256"]
    assert len({result["train_loss"] for result in results}) == 3


@pytest.mark.parametrize("method", ["ntt", "mag-1epoch", "prospr", "px", "dpai", "imp"])
def test_a_pruning_that_stops_after_any_round_ends_in_the_same_bits(tmp_path, method):
    plan = {"rounds": 3, **PLANS.get(method, {})}
    settings = small_settings(method, epochs=1, **plan)
    run(settings, tmp_path / "whole")
    reference = outcome(tmp_path / "whole" / settings.name)

    class Stop(Exception):
        pass

    def stop_at(count):
        def on_progress(progress):
            if progress.stage == "prune" and progress.done == count:
                raise Stop

        return on_progress

    for count in (1, 2):
        with pytest.raises(Stop):
            run(settings, tmp_path / "parts", on_progress=stop_at(count))
    assert (tmp_path / "parts" / settings.name / "pruning.safetensors").exists()
    run(settings, tmp_path / "parts")
    (tmp_path / "parts" / settings.name / "error.json").unlink(missing_ok=True)
    assert outcome(tmp_path / "parts" / settings.name) == reference
    shutil.rmtree(tmp_path / "parts")


def test_mag_1epoch_takes_the_recipes_settings_unless_told_otherwise():
    recipe = load_recipe("quick", {"lr": 0.07, "momentum": 0.5, "weight_decay": 0.01})
    common = {"model": "lenet-5", "data": "digits", "method": "mag-1epoch", "sparsity": 0.9, "seed": 0}
    settings = settings_for(recipe=recipe, **common)
    assert settings.options == {"prune_lr": 0.07, "prune_momentum": 0.5, "prune_weight_decay": 0.01}
    assert settings_for(recipe=recipe, options={"prune_lr": 0.3}, **common).options["prune_lr"] == 0.3
    assert settings_for(recipe=recipe, **{**common, "method": "prospr"}).options["prune_lr"] == 0.1


def test_mag_1epoch_in_a_run_is_mag_1epoch_on_the_first_epoch(tmp_path):
    settings = small_settings("mag-1epoch", epochs=1, rounds=1)
    run(settings, tmp_path)
    data = load("digits")
    model = models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8), seed=0)
    epoch = data.train.batches(settings.recipe.batch, seed=0, epoch=0, augment=settings.recipe.augment)
    masks = ntksap.prune(model, 0.9, "mag-1epoch", data=epoch, **settings.options)
    assert masks == Masks.load(tmp_path / settings.name / "masks.safetensors")
    assert masks != ntksap.prune(model, 0.9, "magnitude")


def test_methods_get_the_batches_they_ask_for():
    data = load("digits")
    sizes = {}
    for name in ("snip", "mag-1epoch", "prospr", "ntt"):
        source = pruning_data(pruning_for(method=name, sparsity=0.9), data, Recipe(epochs=1, batch=100, lr=0.1))
        batches = list(source(0) if callable(source) else source)
        sizes[name] = (len(batches[0][0]), sum(len(labels) for _, labels in batches))
    whole = len(data.train)
    assert sizes == {"snip": (100, 100), "mag-1epoch": (100, whole), "prospr": (128, whole), "ntt": (64, whole)}
    first, again = (pruning_data(pruning_for(method="ntt", sparsity=0.9), data) for _ in range(2))
    assert torch.equal(next(iter(first(1)))[0], next(iter(again(1)))[0])
    assert not torch.equal(next(iter(first(0)))[0], next(iter(first(1)))[0])


def test_imp_trains_as_the_run_does(tmp_path):
    """One level: the dense run of the same seed, whose largest weights are kept, and its first epoch to start from."""
    settings = small_settings("imp", epochs=2, rounds=1, options={"rewind_epoch": 1})
    run(settings, tmp_path, Place(keep_epochs=(0,)))
    masks = Masks.load(tmp_path / settings.name / "masks.safetensors")
    dense = small_settings("dense", epochs=2)
    run(dense, tmp_path, Place(keep_epochs=(1, 2)))
    model = models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8), seed=0)
    read_model(tmp_path / dense.name / "epoch-0002.safetensors", model)
    assert masks == ntksap.prune(model, 0.9, "magnitude")
    read_model(tmp_path / dense.name / "epoch-0001.safetensors", model)
    assert all(torch.equal(masks.weights[name], p) for name, p in model.named_parameters())
    trained = models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8), seed=0)
    read_model(tmp_path / settings.name / "epoch-0000.safetensors", trained)
    assert torch.equal(trained[1].weight, model[1].weight * masks["1.weight"])


def test_imp_takes_its_levels_from_the_sparsity_and_their_epochs_from_the_recipe():
    common = {"model": "lenet-5", "data": "digits", "method": "imp", "seed": 0, "recipe": load_recipe("quick")}
    settings = settings_for(sparsity=1 - 0.8**10, **common)
    assert settings.rounds == 10
    assert settings.options == {"rewind_epoch": 0, "level_epochs": load_recipe("quick").epochs}
    with pytest.raises(ntksap.InputError, match="rewind_epoch is 11, but a level has only 10 epochs"):
        settings_for(sparsity=0.5, options={"rewind_epoch": 11}, **common)
    with pytest.raises(ntksap.InputError, match="use `ntksap train` or `ntksap compare`"):
        make_masks(pruning_for(method="imp", sparsity=0.5), models.build("lenet-5"), (1, 28, 28))


def test_a_method_with_an_allocation_of_its_own_says_so_in_its_settings():
    assert small_settings("random-erk").allocation == "erk"
    assert small_settings("random-erk", allocation="uniform").allocation == "uniform"
    assert small_settings("random-erk", scope="global").allocation == ""
    assert small_settings("random").name == small_settings("random", degree_decay=0.0).name
