"""Allocation, places, pattern and rescaling inside a run: named, recorded, resumable."""

from dataclasses import replace

import pytest
import torch

from ntksap import InputError, Masks, models, prune
from ntksap.runs import make_masks
from ntksap.runs.execution import run
from ntksap.runs.folder import Place
from ntksap.training.checkpoint import read_model
from tests.runs.small_runs import outcome, small_settings

HOW = {"allocation": "erk", "pattern": "2:4", "rescale": True}


def test_a_run_starts_from_rescaled_weights_in_the_allocation_and_the_pattern(tmp_path):
    settings = small_settings("magnitude", epochs=1, **HOW)
    result = run(settings, tmp_path, Place(keep_epochs=(0,)))
    masks = Masks.load(tmp_path / settings.name / "masks.safetensors")
    assert masks.obeys("2:4")
    assert (masks.info["allocation"], masks.info["rescale"]) == ("erk", "layer")
    assert result["kept"] == masks.kept
    model = models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8), seed=0)
    expected = model[1].weight.detach() * masks["1.weight"] * masks["1.weight"].double().mean().rsqrt().float()
    read_model(tmp_path / settings.name / "epoch-0000.safetensors", model)
    torch.testing.assert_close(model[1].weight.detach(), expected)


@pytest.mark.parametrize(
    ("method", "how"), [("magnitude", HOW), ("synflow", {"allocation": "erk", "places": "random"})]
)
def test_a_training_that_stops_resumes_with_the_masks_and_the_scale_it_began_with(tmp_path, method, how):
    settings = small_settings(method, epochs=3, **how)
    run(settings, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.stage == "train" and progress.done == 1:
            raise Stop

    with pytest.raises(Stop):
        run(settings, tmp_path / "parts", on_progress=stop)
    run(settings, tmp_path / "parts")
    assert outcome(tmp_path / "parts" / settings.name) == outcome(tmp_path / "whole" / settings.name)


def test_what_is_not_given_does_not_rename_a_run_and_what_is_given_does():
    plain = small_settings("magnitude")
    assert plain == small_settings("magnitude", allocation="", places="score", pattern="", rescale=False)
    others = [{"allocation": "erk"}, {"places": "random"}, {"pattern": "2:4"}, {"rescale": True}, {"rescale": "unit"}]
    assert len({plain.name, *(small_settings("magnitude", **how).name for how in others)}) == 6


def test_settings_that_contradict_each_other_are_refused_before_anything_runs():
    for how, text in [
        ({"places": "random", "sanity": "shuffle"}, "shuffle moves masks"),
        ({"allocation": "erq"}, "Did you mean 'erk'"),
        ({"pattern": "rows"}, "unknown pattern"),
    ]:
        with pytest.raises(InputError, match=text):
            small_settings("magnitude", **how)


def test_the_closed_form_of_a_run_is_named_and_one_that_ranked_all_weights_still_does(tmp_path):
    new = small_settings("ntk-sap-analytic", rounds=3)
    assert (new.allocation, new.places, new.rounds) == ("ntk-sap", "balanced", 3)
    old = replace(new, allocation="", places="score")  # as before there were numbers per layer
    assert old == small_settings("ntk-sap-analytic", rounds=3, scope="global")
    assert old.name != new.name
    module = models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8), seed=0)
    for settings, how in ((new, {}), (old, {"scope": "global"})):
        masks = make_masks(settings, module, input_shape=(1, 8, 8))
        expected = prune(module, new.sparsity, "ntk-sap-analytic", input_shape=(1, 8, 8), rounds=3, **how)
        assert masks == expected


def test_sanity_checks_of_a_method_with_places_of_its_own():
    shuffled = small_settings("ntk-sap-analytic", sanity="shuffle")
    assert (shuffled.allocation, shuffled.places) == ("ntk-sap", "balanced")
    inverted = small_settings("ntk-sap-analytic", sanity="invert")
    assert (inverted.allocation, inverted.places) == ("ntk-sap", "score")
