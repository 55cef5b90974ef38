import random
import re
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from torch.optim import SGD

from ntksap.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from ntksap.training.loop import train
from ntksap.training.state import TrainState
from tests.cases import BY_NAME
from tests.training.small_training import RECIPE, digits, network, random_masks, state_of


@pytest.fixture
def saved(tmp_path):
    """A checkpoint after one epoch."""
    state = state_of()
    next(train(state, digits()))
    state.save(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def refusal(state: TrainState, path) -> str:
    """What is said about a file that cannot be loaded, which changes nothing."""
    state.save(path.parent / "before")
    with pytest.raises(CheckpointError) as caught:
        state.load(path)
    state.save(path.parent / "after")
    assert (path.parent / "after").read_bytes() == (path.parent / "before").read_bytes()
    return str(caught.value)


def test_the_file_is_plain_safetensors_with_the_models_own_names(saved):
    state = state_of()
    state.load(saved)
    with safe_open(saved, framework="pt") as file:
        names = set(file.offset_keys())
        weight = file.get_tensor("model.0.weight")
    assert {f"model.{name}" for name in state.model.state_dict()} == {n for n in names if n.startswith("model.")}
    trained = {f"optimizer.momentum_buffer.{name}" for name, _ in state.model.named_parameters()}
    assert trained == {n for n in names if n.startswith("optimizer.")}
    assert torch.equal(weight, state.model[0].weight)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 2000, -1])
def test_a_truncated_file_is_refused(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    assert re.search("checkpoint: (not a checkpoint, or )?damaged", refusal(state_of(), saved))


def test_random_bytes_are_refused(saved):
    saved.write_bytes(random.Random(0).randbytes(5000))
    assert "damaged" in refusal(state_of(), saved)


def test_a_changed_byte_is_refused_wherever_it_is(saved):
    content = saved.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    generator = random.Random(1)
    places = [generator.randrange(header) for _ in range(40)]
    places += [generator.randrange(header, len(content)) for _ in range(40)]
    state = state_of()
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1
        saved.write_bytes(bytes(changed))
        with pytest.raises(CheckpointError):
            state.load(saved)
    assert state.epoch == 0


def test_a_file_of_masks_is_refused(saved):
    random_masks(network()).save(saved)
    assert "not a checkpoint of ours" in refusal(state_of(), saved)


def test_no_file_and_a_folder_are_refused(tmp_path):
    assert "no such file" in refusal(state_of(), tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    assert "not a checkpoint" in refusal(state_of(), tmp_path / "folder")


def test_another_model_is_refused_with_the_first_difference(saved):
    masks = random_masks(network())

    def other(index, layer):
        model = network()
        model[index] = layer
        return TrainState(model, RECIPE, masks=masks, seed=1)

    deeper = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 256))
    assert "'6.1.bias'" in refusal(other(6, deeper), saved)
    assert "has a tensor '1.bias', this model has no" in refusal(other(1, torch.nn.Identity()), saved)
    double = refusal(other(8, torch.nn.Linear(256, 10).double()), saved)
    assert re.search("float32 there and .*float64 here", double)
    unmasked = TrainState(network(), RECIPE)
    next(train(unmasked, digits()))
    unmasked.save(saved)
    smaller = refusal(TrainState(network(classes=9), RECIPE), saved)
    assert re.search(r"'8\.weight' is \(10, 256\).* there and \(9, 256\)", smaller)


def test_another_training_is_refused_with_the_setting_that_differs(saved):
    assert "lr is 0.1 there and 0.2 here" in refusal(state_of(replace(RECIPE, lr=0.2)), saved)
    assert "seed is 1 there and 2 here" in refusal(state_of(seed=2), saved)
    assert re.search("masks is '.*' there and None here", refusal(state_of(masked=False), saved))
    frozen = state_of()
    frozen.model[0].requires_grad_(False)
    assert "'0.weight' was trained there, not here" in refusal(frozen, saved)


@pytest.mark.parametrize("case", ["tied", "tokens", "frozen", "attention"])
def test_models_with_tied_or_frozen_weights_come_back(case, tmp_path):
    def made(seed):
        model = BY_NAME[case].module(seed)
        return model, SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)

    model, optimizer = made(0)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    write_checkpoint(tmp_path / "one", model, optimizer, 7, {})
    model, optimizer = made(1)
    assert read_checkpoint(tmp_path / "one", model, optimizer, {}) == (7, {}, None)
    write_checkpoint(tmp_path / "two", model, optimizer, 7, {})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert len(optimizer.state) == len([p for p in model.parameters() if p.requires_grad])
