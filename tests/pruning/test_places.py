"""Balanced places: regular in outputs, inputs and positions of the kernel, whatever the numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ntksap
from ntksap import InputError
from ntksap.net import WeightView
from ntksap.pruning import pattern_named
from ntksap.pruning.places import balanced, balanced_masks, random_scores

layers = st.tuples(st.sampled_from([1, 2, 4, 9]), st.integers(1, 12), st.integers(1, 17))


def spread(counts: torch.Tensor) -> int:
    return int(counts.max() - counts.min())


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(layers, st.integers(0, 999), st.data())
def test_every_output_input_position_and_pair_keeps_the_same_number_within_one(layer, seed, data):
    positions, outputs, inputs = layer
    count = data.draw(st.integers(0, positions * outputs * inputs))
    mask = balanced(count, positions, outputs, inputs, generator(seed))
    assert int(mask.sum()) == count
    for dims in ((0, 2), (0, 1), (1, 2), (1,)):
        assert spread(mask.sum(dims)) <= 1


@given(layers, st.integers(0, 999), st.sampled_from([(1, 2), (2, 4), (1, 4), (4, 8)]), st.data())
def test_with_n_of_m_outputs_positions_and_pairs_are_even_too(layer, seed, nm, data):
    (positions, outputs, sets), (n, m) = layer, nm
    count = data.draw(st.integers(0, positions * outputs * sets * n))
    mask = balanced(count, positions, outputs, sets * m, generator(seed), n, m)
    assert int(mask.sum()) == count
    assert pattern_named(f"{n}:{m}").obeys(mask)
    for dims in ((0, 2), (1, 2), (1,)):
        assert spread(mask.sum(dims)) <= 1


def test_outputs_do_not_fall_into_clusters_that_see_the_same_inputs():
    mask = balanced(64 * 8, 1, 64, 64, generator(0))[0].double()
    shared = mask @ mask.T - 8 * torch.eye(64)
    assert float(shared.max()) < 6  # cyclic places would share all 8


def test_another_seed_gives_other_places_and_the_same_seed_the_same():
    masks = [balanced(100, 9, 8, 4, generator(seed)) for seed in (0, 0, 1)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_blocks_and_constant_fan_in_are_balanced_in_their_own_unit():
    views = {"w": WeightView((8, 12, 3, 3))}
    blocks = balanced_masks({"w": 8 * 27}, views, pattern_named("block:2x4"), 0)["w"]
    assert int(blocks.sum()) == 8 * 27
    assert pattern_named("block:2x4").obeys(views["w"].matrices(blocks))
    assert spread(blocks.sum((1, 2, 3))) <= 8
    rows = balanced_masks({"w": 8 * 10}, views, pattern_named("fan-in"), 0)["w"]
    assert set(rows.sum((1, 2, 3)).tolist()) == {10}


def test_patterns_that_contradict_balance_say_so():
    with pytest.raises(InputError, match="contradict"):
        balanced_masks({"w": 8}, {"w": WeightView((4, 4))}, pattern_named("transposable-2:4"), 0)


def test_inputs_that_do_not_divide_are_named():
    with pytest.raises(InputError, match="'w' has 9 inputs"):
        balanced_masks({"w": 8}, {"w": WeightView((4, 9))}, pattern_named("2:4"), 0)
    with pytest.raises(InputError, match="cannot keep"):
        balanced(13, 1, 2, 8, generator(0), 2, 4)


def test_random_scores_depend_on_seed_and_name_alone():
    views = {"a": WeightView((3, 4)), "b": WeightView((3, 4))}
    scores = random_scores(views, 5)
    assert torch.equal(scores["a"], random_scores({"a": views["a"]}, 5)["a"])
    assert not torch.equal(scores["a"], scores["b"])


@pytest.mark.parametrize(("places", "pattern"), [("random", None), ("balanced", None), ("balanced", "2:4")])
def test_the_default_dtype_of_torch_does_not_matter(places, pattern):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    how = {"allocation": "erk", "places": places, "pattern": pattern}
    expected = ntksap.prune(model, 0.6, "random", **how)
    torch.set_default_dtype(torch.float64)
    try:
        assert ntksap.prune(model, 0.6, "random", **how) == expected
    finally:
        torch.set_default_dtype(torch.float32)
