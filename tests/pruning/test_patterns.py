"""Patterns: obeyed exactly, counted in their own unit, chosen by sums of scores."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ntksap
from ntksap import InputError, Masks, select
from ntksap.net import WeightView, weight_views
from ntksap.pruning import pattern_named
from ntksap.pruning.patterns import Cap, Tie, regular_tiles

PATTERNS = ["2:4", "4:8", "1:3", "transposable-2:4", "transposable-1:4", "block:2x2", "block:3x4", "fan-in"]
each_pattern = pytest.mark.parametrize("name", PATTERNS)

shapes = st.lists(st.integers(1, 9), min_size=2, max_size=3).map(tuple)


def obeys_by_hand(name: str, mask: torch.Tensor) -> bool:
    """The slow twin, for a mask (outputs, inputs, …): count one by one."""
    rows = mask.reshape(mask.shape[0], mask.shape[1], -1).permute(2, 0, 1).tolist()  # positions, outputs, inputs
    if name == "fan-in":
        return len({sum(sum(matrix[o]) for matrix in rows) for o in range(len(rows[0]))}) == 1
    for matrix in rows:
        if name.startswith("block:"):
            high, wide = map(int, name.removeprefix("block:").split("x"))
            tiles = itertools.product(range(0, len(matrix), high), range(0, len(matrix[0]), wide))
            if any(len({v for row in matrix[a : a + high] for v in row[b : b + wide]}) > 1 for a, b in tiles):
                return False
            continue
        n, m = map(int, name.removeprefix("transposable-").split(":"))
        both = [matrix, [list(column) for column in zip(*matrix, strict=True)]]
        for one in both if name.startswith("transposable") else both[:1]:
            if any(sum(row[i : i + m]) > n for row in one for i in range(0, len(row), m)):
                return False
    return True


@each_pattern
@given(shape=shapes, seed=st.integers(0, 99), density=st.floats(0.05, 1))
def test_the_check_agrees_with_counting_one_by_one(name, shape, seed, density):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    masks = Masks({"w": mask})
    assert masks.obeys(name) == obeys_by_hand(name, mask)


@each_pattern
@given(parts=st.lists(shapes, min_size=1, max_size=3), seed=st.integers(0, 99), data=st.data())
def test_masks_obey_and_have_the_nearest_count(name, parts, seed, data):
    generator = torch.Generator().manual_seed(seed)
    scores = {str(i): torch.randn(shape, generator=generator) for i, shape in enumerate(parts)}
    total = sum(score.numel() for score in scores.values())
    kept = data.draw(st.integers(1, total))
    pattern = pattern_named(name)
    masks = select(scores, kept, pattern=pattern)
    assert all(obeys_by_hand(name, mask) for mask in masks.values())
    found = sum(int(mask.sum()) for mask in masks.values())
    views = weight_views({key: tuple(score.shape) for key, score in scores.items()})
    if isinstance(pattern, Cap):
        assert found == min(kept, sum(pattern.capacity(view) for view in views.values()))
    else:
        assert abs(found - kept) <= max(pattern.unit(view) for view in views.values())


@each_pattern
@given(shape=shapes, seed=st.integers(0, 99), data=st.data())
def test_a_second_selection_within_the_first_obeys_too(name, shape, seed, data):
    generator = torch.Generator().manual_seed(seed)
    first, second = ({"w": torch.randn(shape, generator=generator)} for _ in range(2))
    pattern = pattern_named(name)
    early = data.draw(st.integers(1, first["w"].numel()))
    masks = select(first, early, pattern=pattern, loose=True)
    has = int(masks["w"].sum())
    later = select(second, data.draw(st.integers(1, has)), within=masks, pattern=pattern)
    assert obeys_by_hand(name, later["w"])
    assert (later["w"] <= masks["w"]).all()
    if isinstance(pattern, Cap):  # what an early round leaves always suffices for the pattern
        full = select(second, has, within=masks, pattern=pattern)
        assert int(full["w"].sum()) == min(has, pattern.capacity(WeightView(shape)))


@each_pattern
@given(parts=st.lists(shapes, min_size=1, max_size=3), seed=st.integers(0, 99), data=st.data())
def test_counts_per_layer_are_met_within_one_unit(name, parts, seed, data):
    generator = torch.Generator().manual_seed(seed)
    scores = {str(i): torch.rand(shape, generator=generator) for i, shape in enumerate(parts)}
    counts = {key: data.draw(st.integers(1, score.numel())) for key, score in scores.items()}
    pattern = pattern_named(name)
    masks = select(scores, 1, counts=counts, pattern=pattern)
    for key, mask in masks.items():
        view = WeightView(tuple(mask.shape))
        assert obeys_by_hand(name, mask)
        if isinstance(pattern, Tie):
            assert abs(int(mask.sum()) - counts[key]) <= pattern.unit(view)
            assert mask.any()
        else:
            assert int(mask.sum()) == min(counts[key], pattern.capacity(view))


def test_two_of_four_keeps_the_two_largest_and_ties_go_to_the_lower_index():
    scores = torch.tensor([[4.0, 1.0, 3.0, 2.0, 7.0, 7.0, 7.0, 7.0, 5.0]])
    mask = select({"w": scores}, 5, pattern=pattern_named("2:4"))["w"]
    assert mask.tolist() == [[True, False, True, False, True, True, False, False, True]]


def test_a_transposable_tile_is_the_best_of_all():
    scores = torch.rand(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mask = select({"w": scores}, 8, pattern=pattern_named("transposable-2:4"))["w"]
    best = max(float(scores[tile].sum()) for tile in regular_tiles(2))
    assert len(regular_tiles(2)) == 90
    assert float(scores[mask].sum()) == pytest.approx(best, rel=1e-12)


def test_groups_are_ranked_by_the_sum_of_their_scores():
    scores = torch.tensor([[9.0, 0.0, 2.0, 2.0], [0.0, 0.0, 3.0, 3.0]])  # blocks of 9 and 10
    assert (
        select({"w": scores}, 4, pattern=pattern_named("block:2x2"))["w"].tolist() == [[False, False, True, True]] * 2
    )


def test_whole_channels_are_boxes_and_no_selection_of_single_layers_makes_them():
    box = torch.tensor([True, False, True, True])[:, None] & torch.tensor([True, True, False])
    kernel = box[..., None, None].expand(4, 3, 3, 3).clone()
    assert Masks({"w": box, "k": kernel, "whole": torch.ones(2, 2, dtype=torch.bool)}).obeys("channel")
    kernel[0, 0, 1, 1] = False
    assert not Masks({"k": kernel}).obeys("channel")
    box[0, 0] = False
    assert not Masks({"w": box}).obeys("channel")
    assert Masks({"w": box.new_ones(2, 2), "bias": box.new_ones(2)}, {"followers": ["bias"]}).total == 4
    with pytest.raises(InputError, match="span several layers"):
        select({"w": torch.rand(4, 3)}, 6, pattern=pattern_named("channel"))


def test_constant_fan_in_keeps_the_best_of_each_output():
    scores = torch.tensor([[1.0, 2.0, 3.0], [30.0, 20.0, 10.0]])
    assert select({"w": scores}, 2, pattern=pattern_named("fan-in"))["w"].tolist() == [
        [False, False, True],
        [True, False, False],
    ]


def test_inputs_are_consecutive_channels_of_a_convolution_and_the_first_dimension_of_a_transposed_one():
    plain, back = nn.Conv2d(8, 4, 3), nn.ConvTranspose2d(8, 6, 3, groups=2)
    scores = torch.rand(4, 8, 3, 3)
    mask = select({"w": scores}, 4 * 4 * 9, pattern=pattern_named("2:4"))["w"]
    assert (mask.unflatten(1, (2, 4)).sum(2) == 2).all()
    views = weight_views({"weight": tuple(back.weight.shape)}, back)
    mask = select({"weight": torch.rand(8, 3, 3, 3)}, 8 * 3 * 9 // 2, pattern=pattern_named("2:4"), views=views)[
        "weight"
    ]
    assert (mask.unflatten(0, (2, 4)).sum(1) == 2).all()  # two groups of four inputs
    masks = Masks({"weight": mask})
    assert masks.obeys("2:4", back)
    assert plain.weight.shape == scores.shape


@given(st.sampled_from([(6, 4), (6, 4, 3), (6, 2, 3, 3), (5,), ()]), st.sampled_from([0, 1, 2]))
def test_a_view_and_back_is_what_it_was(shape, groups):
    groups = groups if len(shape) > 1 else 0
    view = WeightView(shape, groups)
    tensor = torch.arange(float(torch.zeros(shape).numel())).view(shape)
    assert view.matrices(tensor).shape == torch.Size(view.sizes)
    assert torch.equal(view.tensor(view.matrices(tensor)), tensor)


@pytest.mark.parametrize("name", ["4:2", "0:4", "2:4x", "transposable-4:8", "block:0x4", "block:4", "rows", ""])
def test_patterns_that_there_are_not(name):
    with pytest.raises(InputError, match="pattern"):
        pattern_named(name)


def test_masks_tell_by_themselves_how_their_weights_read():
    model = nn.Sequential(nn.ConvTranspose2d(8, 6, 3, groups=2), nn.Flatten(), nn.Linear(54, 4))
    masks = ntksap.prune(model, 0.7, "magnitude", pattern="2:4")
    assert masks.info["pattern"] == "2:4"
    assert masks.obeys("2:4")
    assert not masks.obeys("channel")
