"""How many weights each layer keeps, from shapes alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ntksap
from ntksap import Allocation, InputError, Masks
from ntksap.pruning import RULES, blocks_of, erk_logits, floor_of
from tests.cases import BY_NAME, CASES

shape = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple)
SHAPES_ONLY = ["uniform", "equal", "erk"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class Shapes(nn.Module):
    """A module that has weights of the given shapes and does nothing."""

    def __init__(self, shapes):
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(s)) for s in shapes])


def allocate(shapes, sparsity, rule, **bounds):
    return ntksap.allocate(Shapes(shapes), sparsity, rule, include="*", **bounds)


def twin_of_erk(shapes, kept):
    """The rule as it is told: scale, make layers above 1 dense, scale the rest again, until all fit."""
    sizes = [math.prod(s) for s in shapes]
    raw = [sum(s) / math.prod(s) for s in shapes]
    dense: set[int] = set()
    while True:
        rest = [i for i in range(len(shapes)) if i not in dense]
        room = kept - sum(sizes[i] for i in dense)
        scale = room / sum(raw[i] * sizes[i] for i in rest) if rest else 0.0
        above = [i for i in rest if scale * raw[i] > 1 + 1e-12]
        if not above:
            return [1.0 if i in dense else scale * raw[i] for i in range(len(shapes))]
        dense |= set(above)


@given(st.lists(shape, min_size=1, max_size=6), st.floats(0, 0.9), st.sampled_from(SHAPES_ONLY))
def test_sums_are_exact_and_no_layer_is_empty_or_above_its_size(shapes, sparsity, rule):
    total = sum(math.prod(s) for s in shapes)
    kept = max(1, round((1 - sparsity) * total))
    if kept < len(shapes):
        with pytest.raises(InputError, match="floors"):
            allocate(shapes, sparsity, rule)
        return
    plan = allocate(shapes, sparsity, rule)
    assert plan.kept == kept
    assert all(1 <= count <= math.prod(plan.shapes[name]) for name, count in plan.items())


@given(st.lists(shape, min_size=1, max_size=6), st.floats(0, 0.95))
def test_erk_is_what_scaling_and_filling_again_gives(shapes, sparsity):
    plan = allocate(shapes, sparsity, "erk", floor=0)
    expected = twin_of_erk(shapes, plan.kept)
    for (name, count), density in zip(plan.items(), expected, strict=True):
        assert abs(count - density * math.prod(plan.shapes[name])) < 1 + 1e-6


@given(st.lists(shape, min_size=1, max_size=6), st.floats(0, 0.95))
def test_uniform_and_equal_are_what_their_names_say(shapes, sparsity):
    plan = allocate(shapes, sparsity, "uniform", floor=0)
    for name, count in plan.items():
        assert abs(count - plan.density * math.prod(plan.shapes[name])) < 1
    plan = allocate(shapes, sparsity, "equal", floor=0)
    level = max(plan.values())
    assert all(count in (level, level - 1, math.prod(plan.shapes[name])) for name, count in plan.items())


@given(st.lists(shape, min_size=1, max_size=5), st.sampled_from(SHAPES_ONLY), st.floats(0.01, 0.3))
def test_floors_as_shares_hold(shapes, rule, floor):
    plan = allocate(shapes, 0.5, rule, floor=floor)
    assert all(count >= math.floor(floor * math.prod(plan.shapes[name])) for name, count in plan.items())


def test_erk_plus_keeps_the_classifier_dense():
    model = BY_NAME["conv-bn"].module()
    plan = ntksap.allocate(model, 0.3, "erk+")
    assert plan["5.weight"] == model[5].weight.numel()
    assert plan.kept == round(0.7 * plan.total)
    with pytest.raises(InputError, match=r"erk\+ keeps '5.weight' dense"):
        ntksap.allocate(model, 0.9, "erk+")


def test_layers_that_make_logits_have_the_square_root_of_the_density_of_others_like_them():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    plan = ntksap.allocate(model, 0.625, "erk-logits", input_shape=(4,))
    assert dict(plan) == {"0.weight": 4, "2.weight": 8}  # x² + x = 2 · 0.375 for x = 1/2


@given(st.lists(st.tuples(shape, st.booleans()), min_size=1, max_size=6), st.floats(0.05, 1))
def test_erk_logits_is_what_its_formula_says(layers, density):
    """The twin: one c for all layers that are not dense, whatever their power, and the sum is right."""
    shapes = {str(index): one for index, (one, _) in enumerate(layers)}
    logits = {str(index) for index, (_, makes) in enumerate(layers) if makes}
    sizes = {name: math.prod(one) for name, one in shapes.items()}
    found = {name: kept / sizes[name] for name, kept in erk_logits(shapes, density, logits).items()}
    assert sum(found[n] * sizes[n] for n in found) == pytest.approx(density * sum(sizes.values()), rel=1e-6)
    free = [(d ** (2 if n in logits else 1)) * sizes[n] / sum(shapes[n]) for n, d in found.items() if d < 1]
    full = [sizes[n] / sum(shapes[n]) for n, d in found.items() if d >= 1]
    assert free == pytest.approx([max(free, default=0.0)] * len(free), rel=1e-6)
    assert not free or not full or max(full) <= free[0] * (1 + 1e-6)


def test_a_mapping_fixes_what_it_names_by_name_first_and_the_rest_share_what_is_left():
    model = nn.Sequential(*[nn.Linear(10, 10) for _ in range(4)])
    plan = ntksap.allocate(model, 0.5, {"[01].weight": 0.9, "1.weight": 7})
    assert dict(plan) == {"0.weight": 90, "1.weight": 7, "2.weight": 52, "3.weight": 51}
    whole = ntksap.allocate(model, None, {"*": 0.25})
    assert set(whole.values()) == {25}


def test_mappings_that_cannot_be_meant():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    for rule, sparsity, text in [
        ({"2.weight": 0.5}, 0.5, "matches no prunable layer"),
        ({"0.weight": 101}, 0.5, "up to 100, not 101"),
        ({"0.weight": 1.5}, 0.5, "density"),
        ({"0.weight": True}, 0.5, "not True"),
        ({"0.weight": 0.5}, None, "every layer must be named"),
        ({"*": 0.5}, 0.7, "and the floors allow 100 to 100"),
        ({"0.weight": 1.0}, 0.6, "and the floors allow"),
        ("erq", 0.5, "Did you mean 'erk'"),
        ("erk", None, "needs a sparsity"),
    ]:
        with pytest.raises(InputError, match=text):
            ntksap.allocate(model, sparsity, rule)
    with pytest.raises(InputError, match="only a rule that is a method takes such settings"):
        ntksap.allocate(model, 0.5, "erk", epochs=3)


def test_counts_of_masks_are_taken_as_they_are_and_in_proportion_at_another_sparsity():
    model = BY_NAME["no-bias"].module()
    masks = ntksap.prune(model, 0.5, "magnitude")
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    assert dict(ntksap.allocate(model, 0.5, masks)) == counts
    half = ntksap.allocate(model, 0.75, masks)
    assert half.kept == round(0.25 * masks.total)
    assert all(abs(half[name] - counts[name] / 2) <= 1 for name in counts)
    assert dict(ntksap.allocate(model, 0.75, half)) == dict(half)
    with pytest.raises(InputError, match="another model"):
        ntksap.allocate(nn.Linear(3, 3), 0.5, masks)


def test_a_method_as_the_rule_gives_the_counts_of_its_masks():
    case = BY_NAME["no-bias"]
    masks = ntksap.prune(case.module(), 0.6, "synflow", rounds=3, **case.source())
    plan = ntksap.allocate(case.module(), 0.6, "synflow", rounds=3, **case.source())
    assert plan.info["rule"] == "synflow"
    assert plan.kept == masks.kept
    again = ntksap.prune(case.module(), 0.6, "magnitude", allocation=plan, **case.source())
    assert {name: int(mask.sum()) for name, mask in again.items()} == dict(plan)


def test_blocks_are_the_innermost_numbered_parts_with_several_layers():
    model = ntksap.models.build("resnet20")
    shapes = ntksap.allocate(model, 0.5).shapes
    assert list(blocks_of(shapes)) == [f"blocks.{i}" for i in range(9)]
    assert blocks_of(shapes, ["blocks.[0-2].*"]) == {
        "blocks.[0-2].*": [name for name in shapes if name.split(".")[1] in "012"]
    }


def test_a_block_floor_gives_each_block_its_share():
    model = ntksap.models.build("resnet20")
    plain = ntksap.allocate(model, 0.9, "erk")
    plan = ntksap.allocate(model, 0.9, "erk", block_floor=0.09)
    assert plan.kept == plain.kept
    for members in blocks_of(plan.shapes).values():
        assert sum(plan[name] for name in members) >= math.floor(0.09 * sum(math.prod(plan.shapes[n]) for n in members))
    assert dict(plan) != dict(plain)
    with pytest.raises(InputError, match=r"block_floor=0.2 needs"):
        ntksap.allocate(model, 0.9, "erk", block_floor=0.2)


def test_floors_that_make_no_sense():
    for floor in (-1, 1.5, True):
        with pytest.raises(InputError, match="a floor is"):
            floor_of(floor, 10)


@each_case
@pytest.mark.parametrize("rule", SHAPES_ONLY)
def test_the_meta_device_will_do(case, rule):
    with torch.device("meta"):
        empty = case.make()
    assert dict(ntksap.allocate(empty, 0.5, rule)) == dict(ntksap.allocate(case.module(), 0.5, rule))


def test_it_prints_as_masks_do():
    model = BY_NAME["no-bias"].module()
    plan = ntksap.allocate(model, 0.5, "uniform")
    masks = ntksap.prune(model, 0.5, "random", allocation=plan)
    assert str(plan) == str(masks)
    assert plan.layers() == masks.layers()
    assert "2 layers, kept 32 of 64" in repr(plan)


def test_an_allocation_refuses_counts_that_a_layer_cannot_have():
    with pytest.raises(InputError, match="has 4 weights and cannot keep 5"):
        Allocation({"w": 5}, {"w": (2, 2)})


def test_an_allocation_for_another_sparsity_or_model_is_refused():
    model = BY_NAME["no-bias"].module()
    plan = ntksap.allocate(model, 0.5)
    with pytest.raises(InputError, match=r"pass sparsity=0.5"):
        ntksap.prune(model, 0.8, "magnitude", allocation=plan)
    with pytest.raises(InputError, match="another model"):
        ntksap.prune(nn.Linear(4, 4), 0.5, "magnitude", allocation=plan)
    with pytest.raises(InputError, match="omit scope"):
        ntksap.prune(model, 0.5, "magnitude", allocation=plan, scope="layer")


def test_a_mask_mapping_is_not_taken_for_densities():
    model = BY_NAME["no-bias"].module()
    masks = Masks(
        {name: torch.ones(shape, dtype=torch.bool) for name, shape in ntksap.allocate(model, 0.5).shapes.items()}
    )
    assert ntksap.allocate(model, None, masks).density == 1.0
    assert set(RULES) < set(ntksap.ALLOCATIONS)


def test_a_ranking_that_empties_branches_of_a_transformer_says_which_allocation_does_not():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    with pytest.warns(ntksap.CollapseWarning, match=r"2\.linear2\.weight.*allocation='erk'.*'erk-logits'"):
        masks = ntksap.prune(model, 0.9, "ntk-sap-analytic", scope="global", rounds=4, input_shape=(6, 16))
    assert "2.linear2.weight" in masks.collapsed
    again = ntksap.prune(model, 0.9, "ntk-sap-analytic", rounds=4, input_shape=(6, 16), allocation="erk-logits")
    assert not again.collapsed
    assert again.info["allocation"] == "erk-logits"
