"""Layers that make logits are found in a module's graph, whatever they are called."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ntksap import InputError
from ntksap.net import Net, has_attention, logit_layers
from ntksap.pruning import Probe
from tests.cases import CASES


class Attention(nn.Module):
    """One head, with an additive bias that is learnt, a residual branch, and an output that is tied to an embedding."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.first, self.second, self.third, self.last = (nn.Linear(6, 6) for _ in range(4))
        self.norm, self.fused = nn.LayerNorm(6), fused
        self.bias = nn.Parameter(torch.zeros(5, 5))

    def forward(self, ids):
        x = self.embedding(ids)
        y = self.norm(x)
        q, k, v = self.first(y), self.second(y), self.third(y)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, self.bias)
        else:
            mixed = (q @ k.mT / 6**0.5 + self.bias).softmax(-1) @ v
        return self.norm(x + self.last(mixed)) @ self.embedding.weight.T


@pytest.mark.parametrize("fused", [True, False])
def test_they_are_queries_keys_and_what_makes_the_output(fused):
    found = logit_layers(Attention(fused), torch.zeros(1, 5, dtype=torch.long))
    assert found == {"first.weight", "second.weight", "embedding.weight"}


def test_weights_of_torchs_own_attention_and_of_a_router():
    encoder = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3))
    assert logit_layers(encoder, torch.ones(1, 5, 8)) == {"0.self_attn.in_proj_weight", "1.weight"}

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts, self.head = nn.Linear(4, 2), nn.Linear(4, 8), nn.Linear(4, 3)

        def forward(self, x):
            share = self.router(x).softmax(-1)
            return self.head((self.experts(x).unflatten(-1, (2, 4)) * share.unsqueeze(-1)).sum(-2).relu())

    assert logit_layers(Mixture().to("meta"), torch.ones(1, 4)) == {"router.weight", "head.weight"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_network_has_some_and_is_not_changed(case):
    module = case.module()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    inputs = Probe.of(Net(module), **case.source()).noise(0, 1)
    assert logit_layers(module, inputs) <= set(before)
    assert logit_layers(module, inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_module_that_looks_at_values_is_refused_with_the_remedy():
    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > 0 else x

    with pytest.raises(InputError, match="use the allocation 'erk'"):
        logit_layers(Odd(4, 4), torch.ones(1, 4))


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_seen_whether_torch_fuses_it_or_not(fused):
    assert has_attention(Attention(fused), torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize(
    "last", [nn.Identity(), nn.Softmax(-1), nn.LogSoftmax(-1)], ids=lambda last: type(last).__name__
)
def test_a_softmax_of_the_output_alone_is_no_attention(last):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10), last)
    assert not has_attention(module, torch.ones(1, 3, 8, 8))


def test_a_gate_that_weighs_channels_by_a_softmax_is_attention():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.layer(x) * self.gate(x).softmax(-1))

    assert has_attention(Gate(), torch.ones(1, 4))


def test_torch_logs_nothing_where_a_module_cannot_be_evaluated_without_values(caplog):
    module = nn.utils.spectral_norm(nn.Linear(4, 4))
    with pytest.raises(InputError, match="asks for values"):
        has_attention(module, torch.ones(1, 4))
    assert not caplog.records
