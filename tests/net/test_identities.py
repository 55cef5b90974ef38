"""Which modules count as the identity when paths are counted."""

import pytest
import torch
from torch import nn

from ntksap.net import Net, own_identities


class ScaledActivation(nn.Module):
    def forward(self, x):
        return 3 * x.tanh()


class NormalisedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return x @ (self.weight / self.weight.norm())


def test_norms_and_activations_of_ones_own_are_left_out_and_come_back():
    net = Net(nn.Sequential(nn.Linear(4, 4), ScaledActivation()))
    linear, x = Net(nn.Sequential(nn.Linear(4, 4))), torch.ones(2, 4)
    weights = {"0.weight": torch.eye(4), "0.bias": torch.zeros(4)}
    with own_identities(net):
        assert torch.equal(net(weights, x), linear(weights, x))
    assert torch.equal(net(weights, x), 3 * x.tanh())


@pytest.mark.parametrize(
    "make",
    [NormalisedLinear, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), lambda: nn.BatchNorm1d(4)],
    ids=["with weights", "weight_norm", "BatchNorm"],
)
def test_what_makes_or_holds_weights_or_statistics_stays(make):
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Linear(4, 4), make()))
    x = torch.randn(3, 4)
    before = net(net.weights, x)
    with own_identities(net):
        assert torch.equal(net(net.weights, x), before)
