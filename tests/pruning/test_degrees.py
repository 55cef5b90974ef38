"""Degree decay against loops over units, in one layer and through all rounds."""

import itertools
import math

import pytest
import torch
from torch import nn

import ntksap
from ntksap.net import Net, WeightView, weight_views
from ntksap.pruning import Probe, select
from ntksap.pruning.degrees import degree_products
from tests.cases import BY_NAME


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
