"""Where weight draws come from."""

import math

import pytest
import torch
from torch import nn

from ntksap.net import Net
from ntksap.net.initialisers import INITIALISERS, variances
from tests.cases import CASES


@pytest.mark.parametrize("init", ["kaiming_normal", "reset"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_known_variances_are_those_of_the_draws(case, init):
    net = Net(case.module(), init=init)
    known = variances(INITIALISERS[init], net._skeleton)
    assert set(known) >= (set(net.prunable) if init == "kaiming_normal" else set())
    draws = [net.draw("variance", index) for index in range(300)]
    for name, variance in known.items():
        drawn = torch.stack([draw[name] for draw in draws]).double()
        error = math.sqrt(3 / drawn.numel())
        assert drawn.mean().abs() <= 5 * math.sqrt(variance / drawn.numel()), name
        assert float(drawn.square().mean()) == pytest.approx(variance, rel=5 * error, abs=0), name


def test_embeddings_and_the_learnt_parts_of_attention_are_known_too():
    attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
    module = nn.ModuleList([nn.Embedding(5, 60, padding_idx=0), nn.EmbeddingBag(5, 60), attention])
    net = Net(module, init="reset")
    assert set(net.weights) - set(net.variances()) == {"2.in_proj_weight", "2.out_proj.weight"}
    draws = [net.draw("variance", index) for index in range(300)]
    for name, variance in net.variances().items():
        assert float(torch.stack([draw[name] for draw in draws]).square().mean()) == pytest.approx(variance, rel=0.08)


def test_all_weights_of_layers_are_known_where_they_are_drawn_by_kaiming():
    net = Net(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ConvTranspose2d(4, 2, 3), nn.Flatten(), nn.Linear(8, 3)))
    assert net.variances()["0.weight"] == 2 / 9
    assert set(net.prunable) <= set(net.variances())
    assert Net(nn.Linear(2, 2), init=nn.Module.eval).variances() == {}
    assert Net(nn.Linear(2, 2), init="shuffle").variances() == {}
