"""A training goes the ways that its layers chose when it began, also after it was interrupted."""

import json

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ntksap.net.kernels import library
from ntksap.training import train
from ntksap.training.checkpoint import CheckpointError, _hash
from tests.training.small_training import digits, same_bits, state_of

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


def rewritten(path, change):
    """Change the facts in a checkpoint, and its hash with them."""
    with safe_open(path, framework="pt") as file:
        ((key, header),) = file.metadata().items()
    tensors, facts = load_file(path), json.loads(header)["facts"]
    change(facts)
    save_file(tensors, path, {key: json.dumps({"facts": facts, "sha256": _hash(tensors, facts)})})


def test_a_training_that_resumes_goes_the_ways_that_it_began_with(tmp_path, fastest):
    fastest("kept")
    state, data = state_of(), digits(130, 50)
    records = train(state, data)
    next(records)
    state.save(tmp_path / "one")
    chosen = dict(state.kernels.choices.ways)
    assert "kept" in chosen.values()
    next(records)
    fastest("torch")
    again = state_of()
    again.load(tmp_path / "one")
    next(train(again, data))
    assert again.kernels.choices.ways == chosen
    assert same_bits(again.model, state.model)
    other = state_of()
    next(train(other, data))
    assert set(other.kernels.choices.ways.values()) == {"torch"}


def test_a_training_that_recorded_no_choices_goes_on_by_the_rule(tmp_path, fastest):
    fastest("kept")
    data = digits(130, 50)
    ruled = state_of()
    ruled.kernels.choices = None  # as all trainings were before
    records = train(ruled, data)
    next(records)
    ruled.save(tmp_path / "one")
    next(records)
    again = state_of()
    again.load(tmp_path / "one")
    assert again.kernels.choices is None
    next(train(again, data))
    assert same_bits(again.model, ruled.model)


def test_choices_that_are_none_are_refused(tmp_path):
    state_of().save(tmp_path / "one")
    for choices in ([], {"0": 1}, "kept"):
        rewritten(tmp_path / "one", lambda facts, choices=choices: facts.update(choices=choices))
        with pytest.raises(CheckpointError, match="its choices are not valid"):
            state_of().load(tmp_path / "one")
