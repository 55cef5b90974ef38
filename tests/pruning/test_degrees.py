"""Degree decay against loops over units, in one layer and through all rounds."""

import itertools
import math

import pytest
import torch
from torch import nn

import ntksap
from ntksap.net import Net, WeightView, weight_views
from ntksap.pruning import Probe, Selector, select
from ntksap.pruning.degrees import degree_products
from ntksap.pruning.schedules import one_shot
from ntksap.runs import pruning_for
from tests.cases import BY_NAME, CASES


def counted(layer: nn.Module, mask: torch.Tensor) -> torch.Tensor:
    """(weights that leave the input · weights that enter the output) of each weight, by loops; outputs come first."""
    groups = getattr(layer, "groups", 1)
    outputs, inputs = mask.shape[:2]
    product = torch.zeros(mask.shape, dtype=torch.float64)
    for o, i in itertools.product(range(outputs), range(inputs)):
        group = o // (outputs // groups)
        members = range(group * (outputs // groups), (group + 1) * (outputs // groups))
        leaving = sum(int(mask[other, i].sum()) for other in members)
        product[o, i] = max(int(mask[o].sum()), 1) * max(leaving, 1)
    return product


@pytest.mark.parametrize(
    "layer", [nn.Linear(5, 7), nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 2, groups=2), nn.Conv1d(4, 4, 3, groups=4)], ids=str
)
def test_degrees_are_what_loops_count(layer):
    shape = tuple(layer.weight.shape)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.4
    view = weight_views({"weight": shape}, layer)["weight"]
    assert torch.equal(degree_products(mask, view), counted(layer, mask))


def test_a_transposed_convolution_and_a_stack_of_matrices_have_units_of_their_own():
    turned = nn.ConvTranspose2d(4, 6, 2, groups=2)
    mask = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)) < 0.5
    got = degree_products(mask, weight_views({"weight": (4, 3, 2, 2)}, turned)["weight"])
    for i, o in itertools.product(range(4), range(3)):
        group = range(2) if i < 2 else range(2, 4)
        entering = sum(int(mask[other, o].sum()) for other in group)
        assert (got[i, o] == max(entering, 1) * max(int(mask[i].sum()), 1)).all()
    view = WeightView((2, 3, 4), stack=True)
    mask = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    alone = torch.stack([counted(nn.Linear(4, 3), one) for one in mask])
    assert torch.equal(degree_products(mask, view), alone)


@pytest.mark.parametrize("regrow", [False, True])
def test_every_round_lowers_scores_by_the_degrees_before_it(regrow):
    case = BY_NAME["residual"]
    module, data = case.module(), case.batches()
    how = {"rounds": 4, "degree_decay": 0.5, **case.source(), "data": data, "floor": 1}
    method = "force" if regrow else "synflow"
    masks = ntksap.prune(module, 0.8, method, **how)
    assert masks.info["degree_decay"] == 0.5
    net = Net(module)
    probe = Probe.of(net, data=data, **case.source())
    score = ntksap.methods.METHODS[method].score
    layers = {name: module.get_submodule(name.rpartition(".")[0]) for name in net.prunable}
    present = {name: torch.ones(net.weights[name].shape, dtype=torch.bool) for name in net.prunable}
    for index in range(1, 5):
        kept = round(0.2 ** (index / 4) * masks.total)
        exponent = 0.5 * math.log10(masks.total / kept)
        lowered = {
            name: s * counted(layers[name], present[name]).pow(-exponent).to(s)
            for name, s in score(net, present, probe.at(index)).items()
        }
        present = select(lowered, kept, within=None if regrow else present, floor=1)
    assert all(torch.equal(masks[name], present[name]) for name in masks)
    assert masks != ntksap.prune(module, 0.8, method, **{**how, "degree_decay": 0.0})


def test_more_channels_of_a_network_stay_alive():
    model = ntksap.models.build("resnet8", input_shape=(3, 16, 16))
    alive = []
    for decay in (0.0, 0.2):
        masks = ntksap.prune(model, 0.99, "synflow", rounds=20, degree_decay=decay, input_shape=(3, 16, 16))
        alive.append(sum(int(mask.flatten(1).any(1).sum()) for mask in masks.values()))
    assert alive[1] > alive[0]


def test_what_has_no_scores_has_no_decay():
    case = BY_NAME["no-bias"]
    with pytest.raises(ntksap.InputError, match="degree_decay multiplies scores, and phew has none"):
        ntksap.prune(case.module(), 0.5, "phew", degree_decay=0.2, **case.source())
    for wrong in (-1.0, True, math.nan):
        with pytest.raises(ntksap.InputError, match="a number, at least 0"):
            ntksap.prune(case.module(), 0.5, "magnitude", degree_decay=wrong)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_while_a_layer_has_all_its_weights_degrees_change_no_ranking_within_it(case):
    module = case.module()
    net = Net(module)
    views = weight_views({name: tuple(net.weights[name].shape) for name in net.prunable}, module)
    scores = {name: net.weights[name].abs() for name in net.prunable}
    ones = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    plan = ntksap.allocate(module, 0.5, "erk")
    for how in ({"allocation": plan}, {"scope": "layer"}):
        plain, lowered = (
            Selector(0.5, 1, one_shot, views, **how, degree_decay=decay).masks(scores, 1, present=ones)
            for decay in (0.0, 0.5)
        )
        assert plain == lowered


FIXED = [
    ("random-erk", {}),
    ("magnitude-erk", {}),
    ("snip", {"allocation": "erk"}),
    ("magnitude", {"scope": "layer"}),
    ("ntk-sap-analytic", {"rounds": 1}),
    ("synflow", {"allocation": "erk", "schedule": "one-shot"}),
]


@pytest.mark.parametrize(("method", "how"), FIXED)
def test_decay_that_would_change_nothing_is_refused_and_several_rounds_give_it_an_effect(method, how):
    case = BY_NAME["residual"]
    given = {**case.source(), "data": case.batches(), "floor": 1}
    with pytest.raises(ntksap.InputError, match=f"degree_decay changes nothing in {method}: each layer keeps a fixed"):
        ntksap.prune(case.module(), 0.8, method, degree_decay=0.5, **given, **how)
    with pytest.raises(ntksap.InputError, match="degree_decay changes nothing"):
        pruning_for(method=method, sparsity=0.8, degree_decay=0.5, **how)
    rounds = {**how, "rounds": 3, "schedule": "exponential", "places": "score"}
    one_ranking = {**how, "scope": "global", "allocation": None, "places": "score"}
    for better in (rounds, one_ranking):
        masks = [ntksap.prune(case.module(), 0.8, method, degree_decay=c, **given, **better) for c in (0.0, 0.5)]
        assert masks[0] != masks[1]


def test_weights_that_may_return_make_the_rounds_of_one_density_differ():
    case = BY_NAME["residual"]
    how = {"rounds": 3, "schedule": "one-shot", "allocation": "erk", **case.source(), "data": case.batches()}
    masks = [ntksap.prune(case.module(), 0.8, "force", degree_decay=decay, **how) for decay in (0.0, 0.5)]
    assert masks[0] != masks[1]


def test_decay_without_scores_is_refused_with_counts_of_a_scope_too():
    case = BY_NAME["no-bias"]
    with pytest.raises(ntksap.InputError, match="random places need none"):
        ntksap.prune(case.module(), 0.5, "synflow", scope="layer", places="random", degree_decay=0.2, **case.source())
