"""Masks of `ntk-sap-analytic`."""

import pytest
import torch
from torch import nn

import ntksap
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.methods.ntk_sap_analytic import expected_trace, ntk_sap_analytic
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe


def resnet20(sparsity: float, **settings):
    model = ntksap.models.build("resnet20")
    masks = ntksap.prune(model, sparsity, "ntk-sap-analytic", input_shape=(3, 32, 32), **settings)
    return masks, ntksap.cost(model, masks, input_shape=(3, 32, 32)).sparse / 1e6


@pytest.mark.parametrize("scope", [None, "global"])
def test_multiply_adds_are_near_the_papers(scope):
    masks, flops = resnet20(1 - 0.8**18, rounds=4, scope=scope)
    assert flops == pytest.approx(2.83, rel=0.1)
    assert not masks.collapsed


@pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning")  # without noise whole layers go
def test_noise_keeps_channels_alive_that_ties_by_index_would_remove():
    alive = []
    for noise in (True, False):
        masks, _ = resnet20(1 - 0.8**14, rounds=2, noise=noise, scope="global")
        alive.append(sum(int(mask.flatten(1).any(1).sum()) for mask in masks.values()))
    assert alive[0] > 1.2 * alive[1]


def test_scores_survive_values_beyond_float32():
    layers = [nn.Linear(64, 64, bias=False) for _ in range(60)]
    module = nn.Sequential(*layers)

    def wide(part: nn.Module) -> None:
        for layer in part:
            nn.init.normal_(layer.weight)

    net = Net(module, init=wide)
    ones = ntksap.Masks.ones({name: net.weights[name] for name in net.prunable})
    probe = Probe.of(net, input_shape=(64,))
    assert float(expected_trace(net, ones, probe)[0].detach()) > 1e39
    sums = [float(score.sum()) for score in ntk_sap_analytic(net, ones, probe, noise=False).values()]
    assert sums == pytest.approx([sums[0]] * 60, rel=1e-4)


def test_what_is_not_prunable_counts_but_is_not_scored():
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    net = Net(module, exclude="0.weight")
    scores = ntk_sap_analytic(net, {"2.weight": torch.ones(3, 8)}, Probe.of(net, input_shape=(5,)), noise=False)
    assert list(scores) == ["2.weight"]
    assert float(scores["2.weight"].min()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [False, True])
def test_layers_have_the_mean_scores_of_the_sampled_method(normalised):
    """The mean of a layer's score over many draws, relative to the first layer's. With BatchNorm within 25 %."""
    torch.manual_seed(0)

    def norm():
        return nn.BatchNorm2d(12) if normalised else nn.Identity()

    module = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False), norm(), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1, bias=False),
        norm(), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 25, 4, bias=False),
    )  # fmt: skip
    net = Net(module.double())
    probe = Probe.of(net, input_shape=(3, 5, 5))
    ones = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}
    sampled = ntk_sap(net, ones, probe, draws=1000, batch=64, tangent=True)
    closed = ntk_sap_analytic(net, ones, probe, noise=False)
    ratios = torch.stack([sampled[name].mean() / closed[name].mean() for name in net.prunable])
    assert ratios.tolist() == pytest.approx([float(ratios.mean())] * 3, rel=0.25 if normalised else 0.1)


def test_the_variance_of_known_initialisers_is_exact_so_the_trace_is_too():
    """K = o·(d + h) for o outputs of h ReLUs of d inputs: each layer contributes its fan-in, halved gates and all."""
    module = nn.Sequential(nn.Linear(7, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))
    net = Net(module)
    ones = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}
    trace, _ = expected_trace(net, ones, Probe.of(net, input_shape=(7,)))
    assert float(trace.detach()) == pytest.approx(3 * (7 + 5), rel=1e-6)
