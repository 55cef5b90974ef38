"""Regrowth in the training loop: counts, resuming, processes, kernels."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ntksap import InputError, Masks, sparse_kernels
from ntksap.training.checkpoint import CheckpointError
from ntksap.training.loop import train
from ntksap.training.recipe import Recipe, load_recipe
from ntksap.training.state import TrainState
from tests.training.small_training import RECIPE, digits, network, random_masks, same_bits, state_of, untimed

RIGL = replace(RECIPE, regrow="rigl", regrow_every=2)  # 5 steps an epoch: changes within epochs and across them
RECIPES = {
    "rigl": RIGL,
    "set": replace(RIGL, regrow="set", regrow_every=3),
    "adamw": replace(RIGL, optimizer="adamw", lr=0.01),
    "channels-last": replace(RIGL, channels_last=True),
    "bf16": replace(RIGL, precision="bf16"),
}


def counts(masks: Masks) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in masks.items()}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_resuming_after_any_epoch_ends_in_the_same_bits_and_masks(recipe, tmp_path):
    whole = state_of(recipe)
    start = whole.masks
    whole.save(tmp_path / "0")
    records, masks = [], [start]
    for record in train(whole, digits()):
        records.append(untimed(record))
        masks.append(whole.masks)
        whole.save(tmp_path / str(record.epoch))
        assert counts(whole.masks) == counts(start)
        assert whole.masks.obeyed_by(whole.model)
    assert masks[1] != masks[0]
    assert masks[2] != masks[1]
    for epoch in range(recipe.epochs + 1):
        resumed = state_of(recipe, init=99)  # the checkpoint alone decides the weights
        resumed.load(tmp_path / str(epoch))
        assert resumed.masks == masks[epoch]
        assert [untimed(record) for record in train(resumed, digits())] == records[epoch:]
        assert same_bits(resumed.model, whole.model)
        resumed.save(tmp_path / "resumed")
        assert (tmp_path / "resumed").read_bytes() == (tmp_path / str(recipe.epochs)).read_bytes()


def test_a_training_too_short_for_a_change_says_so_in_the_words_of_the_recipe():
    state = state_of(replace(RIGL, regrow_every=100))
    start = state.masks
    with pytest.warns(UserWarning, match="no mask would change: the recipe regrows every 100 steps") as caught:
        list(train(state, digits()))
    assert len(caught) == 1
    assert state.masks == start


def test_going_back_in_the_same_process_gives_the_same_bits(tmp_path):
    state = state_of(RIGL)
    state.save(tmp_path / "0")
    records = [untimed(record) for record in train(state, digits())]
    state.load(tmp_path / "0")
    assert state.masks == state_of(RIGL).masks
    assert [untimed(record) for record in train(state, digits())] == records


def test_masks_change_when_the_recipe_says_so_and_not_after_its_last_change():
    state = state_of(replace(RIGL, epochs=4, regrow_until=0.5))  # 20 steps: the last change is after step 8
    found = [state.masks.sha256 for _ in train(state, digits())]
    assert len(set(found[1:])) == 1 != len(set(found))


def test_weights_that_grow_are_trained():
    state = state_of(RIGL)
    start = state.masks
    for _ in train(state, digits()):
        pass
    weights = dict(state.model.named_parameters())
    grown = torch.cat([weights[n].detach()[mask & ~start[n]] for n, mask in state.masks.items()])
    assert len(grown) > 20
    assert (grown != 0).float().mean() > 0.9


def test_our_kernels_follow_the_masks():
    """They train what grows, and what they compute is what torch computes, but for the last bits."""
    states = []
    for native in (True, False):
        model = network()
        masks = random_masks(model, 0.1)
        with sparse_kernels(model, masks) as used:
            if not used:
                pytest.skip("no kernels here")
        state = TrainState(model, replace(RIGL, epochs=2), masks=masks, seed=1)
        state.kernels.native = native
        losses = [record.train_loss for record in train(state, digits())]
        states.append((state, losses))
        convolution = model.get_parameter("3.weight").detach()[state.masks["3.weight"] & ~masks["3.weight"]]
        assert len(convolution) > 10
        assert (convolution != 0).float().mean() > 0.8
    (ours, one), (theirs, two) = states
    assert one == pytest.approx(two, rel=1e-3)
    assert ours.masks == theirs.masks


def test_a_checkpoint_of_a_training_without_regrowth_is_of_another_training(tmp_path):
    plain, regrowing = state_of(), state_of(RIGL)
    plain.save(tmp_path / "plain")
    regrowing.save(tmp_path / "regrowing")
    with pytest.raises(CheckpointError, match="regrow is 'the default' there and 'rigl' here"):
        regrowing.load(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="regrow is 'rigl' there"):
        plain.load(tmp_path / "regrowing")


def test_a_dense_network_has_nothing_to_regrow():
    state = state_of(RIGL, masked=False)
    assert not state.regrows
    assert [untimed(r) for r in train(state, digits())] == [untimed(r) for r in train(state_of(masked=False), digits())]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("regrow", "random"),
        ("regrow_every", 0),
        ("regrow_fraction", 0.0),
        ("regrow_fraction", 1.5),
        ("regrow_until", 0),
    ],
)
def test_wrong_settings_are_refused(setting, value):
    with pytest.raises(InputError, match=setting):
        load_recipe("quick", {setting: value})


def train_or_resume(path: str) -> None:
    state = state_of(replace(RIGL, epochs=20))
    if Path(path).exists():
        state.load(path)
    for _ in train(state, digits()):
        state.save(path)


def test_a_killed_process_goes_on_where_it_was(tmp_path):
    killed, whole = str(tmp_path / "killed"), str(tmp_path / "whole")
    code = "import torch; torch.set_num_threads(1); from tests.training.test_regrow import train_or_resume; "
    code += f"train_or_resume({killed!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    while not Path(killed).exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL  # it was still at work
    train_or_resume(killed)
    train_or_resume(whole)
    assert Path(killed).read_bytes() == Path(whole).read_bytes()


def test_the_recipe_without_regrowth_is_that_of_the_dense_network():
    assert RIGL.without_regrowth() == RECIPE
    assert Recipe(epochs=1, batch=1, lr=0.1).stated() == {"epochs": 1, "batch": 1, "lr": 0.1}
