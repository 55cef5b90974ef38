"""A training that was interrupted ends in the same bits as one that was not."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ntksap.training.loop import DivergedError, Epoch, train
from ntksap.training.state import TrainState
from tests.training.small_training import RECIPE, digits, same_bits, state_of, untimed

RECIPES = {
    "sgd": RECIPE,
    "nesterov-step": replace(RECIPE, optimizer="nesterov", schedule="step", drops=(2,)),
    "adamw": replace(RECIPE, optimizer="adamw", lr=0.01),
    "no-momentum": replace(RECIPE, momentum=0.0),
    "bf16-channels-last": replace(RECIPE, precision="bf16", channels_last=True),
    "adamw-channels-last": replace(RECIPE, optimizer="adamw", lr=0.01, channels_last=True),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_resuming_after_any_epoch_ends_in_the_same_bits(recipe, tmp_path):
    whole = state_of(recipe)
    whole.save(tmp_path / "0")
    records = []
    for record in train(whole, digits()):
        records.append(untimed(record))
        whole.save(tmp_path / str(record.epoch))
    for epoch in range(recipe.epochs + 1):
        resumed = state_of(recipe, init=99)  # the checkpoint alone decides the weights
        resumed.load(tmp_path / str(epoch))
        assert resumed.epoch == epoch
        assert [untimed(record) for record in train(resumed, digits())] == records[epoch:]
        assert same_bits(resumed.model, whole.model)
        resumed.save(tmp_path / "resumed")  # the optimizer's state too
        assert (tmp_path / "resumed").read_bytes() == (tmp_path / str(recipe.epochs)).read_bytes()


def test_going_back_in_the_same_process_gives_the_same_bits(tmp_path):
    state = state_of()
    state.save(tmp_path / "0")
    records = []
    for record in train(state, digits()):
        records.append(untimed(record))
        state.save(tmp_path / str(record.epoch))
    for epoch in (1, 0):
        state.load(tmp_path / str(epoch))
        assert [untimed(record) for record in train(state, digits())] == records[epoch:]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_optimizers_tensors_come_back_in_the_memory_format_of_their_parameters(optimizer, tmp_path):
    recipe = replace(RECIPE, optimizer=optimizer, lr=0.01, channels_last=True)
    state = state_of(recipe)
    next(train(state, digits()))
    state.save(tmp_path / "state")
    resumed = state_of(recipe)
    resumed.load(tmp_path / "state")
    for one in (state, resumed):
        held = one.optimizer.state[one.model[3].weight]
        for tensor in (one.model[3].weight, *(held[key] for key in held.keys() - {"step"})):
            assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_after_divergence_the_last_checkpoint_is_as_it_was_and_goes_on(tmp_path):
    state = state_of()
    records = train(state, digits())
    next(records)
    state.save(tmp_path / "good")
    content = (tmp_path / "good").read_bytes()
    state.model[8].bias.data.fill_(float("nan"))
    with pytest.raises(DivergedError, match="epoch 2"):
        save_each(records, state, tmp_path / "good")
    assert (tmp_path / "good").read_bytes() == content
    state.load(tmp_path / "good")
    assert [record.epoch for record in train(state, digits())] == [2, 3]


def save_each(records: Iterator[Epoch], state: TrainState, path: Path) -> None:
    for _ in records:
        state.save(path)


def train_or_resume(path: str) -> None:
    state = state_of(replace(RECIPE, epochs=30))
    if Path(path).exists():
        state.load(path)
    save_each(train(state, digits()), state, Path(path))


def test_a_killed_process_goes_on_where_it_was(tmp_path):
    killed, whole = str(tmp_path / "killed"), str(tmp_path / "whole")
    code = "import torch; torch.set_num_threads(1); from tests.training.test_resume import train_or_resume; "
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
