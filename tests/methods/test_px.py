"""PX against a sum over all paths of a small net, in float64."""

import itertools

import pytest
import torch
from torch import nn

import ntksap
from ntksap.methods.px import px
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe

SIZES = (3, 4, 5, 2)


class Functional(nn.Module):
    """The same net with ReLUs as modules, functions, methods, and in place."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(SIZES))
        self.form = form
        self.module = nn.ReLU(inplace=form == "module in place")

    def relu(self, x):
        if self.form == "function":
            return nn.functional.relu(x)
        if self.form == "torch":
            return torch.relu(x)
        if self.form == "method":
            return x.relu()
        if self.form == "in place":
            x.relu_()
            return x
        return self.module(x)

    def forward(self, x):
        first, second, third = self.layers
        return third(self.relu(second(self.relu(first(x)))))


FORMS = ["function", "torch", "method", "in place", "module", "module in place"]


def setting(form: str):
    torch.manual_seed(0)
    module = Functional(form).double()
    net = Net(module)
    generator = torch.Generator().manual_seed(1)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.8 for n in net.prunable}
    batches = [(torch.randn(6, 3, generator=generator, dtype=torch.float64), None) for _ in range(2)]
    return net, masks, Probe.of(net, data=batches)


@pytest.mark.parametrize("form", FORMS)
def test_px_is_a_sum_over_all_paths_and_inputs(form):
    net, masks, probe = setting(form)
    weights = [net.weights[n] * masks[n] for n in net.prunable]
    inputs = torch.cat([batch for batch, _ in probe.batches])
    first = inputs @ weights[0].T
    second = first.relu() @ weights[1].T
    active = [(first > 0).double(), (second > 0).double()]
    # z1: over paths to output k, input² where all units on the path are active; z2: over paths, the squared weights
    paths = list(itertools.product(*(range(size) for size in SIZES)))
    z1 = torch.zeros(len(inputs), SIZES[-1], dtype=torch.float64)
    strength = {}
    for path in paths:
        edges = [(n, path[i + 1], path[i]) for i, n in enumerate(net.prunable)]
        if all(masks[n][row, column] for n, row, column in edges):
            z1[:, path[-1]] += inputs[:, path[0]].square() * active[0][:, path[1]] * active[1][:, path[2]]
            strength[path] = torch.stack([net.weights[n][r, c] for n, r, c in edges]).square().prod()
    expected = {n: torch.zeros_like(net.weights[n]) for n in net.prunable}
    for path, value in strength.items():
        for i, n in enumerate(net.prunable):
            expected[n][path[i + 1], path[i]] += z1[:, path[-1]].sum() * value
    scores = px(net, masks, probe)
    for n in net.prunable:
        torch.testing.assert_close(scores[n][masks[n]], expected[n][masks[n]])
        assert scores[n].max() > 0


def test_leaky_relus_pass_their_slope():
    torch.manual_seed(0)
    weight = torch.randn(4, 3, dtype=torch.float64)
    inputs = torch.randn(5, 3, dtype=torch.float64)
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.LeakyReLU(0.2), nn.Linear(4, 1, bias=False)).double()
    module[0].weight.data.copy_(weight)
    net = Net(module)
    masks = {n: torch.ones_like(net.weights[n], dtype=torch.bool) for n in net.prunable}
    gates = torch.where(inputs @ weight.T > 0, 1.0, 0.2)
    z1 = (inputs.square().sum(1, keepdim=True) * gates).sum()
    expected = z1 * weight.square() * net.weights["2.weight"].square().T
    torch.testing.assert_close(px(net, masks, Probe.of(net, data=[(inputs, None)]))["0.weight"], expected)


@pytest.mark.parametrize(
    ("norm", "groups"),
    [
        (nn.LayerNorm([4, 2, 2]), 1),
        (nn.LayerNorm([4, 2, 2], elementwise_affine=False), 1),
        (nn.RMSNorm([4, 2, 2]), 1),
        (nn.RMSNorm([4, 2, 2], eps=0.1), 1),
        (nn.GroupNorm(2, 4), 2),
    ],
    ids=str,
)
def test_norms_pass_what_they_divided_by_as_constants(norm, groups):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)).double()
    for parameter in norm.parameters():
        parameter.data.uniform_(0.5, 1.5)
    inputs = torch.randn(6, 3, 2, 2, dtype=torch.float64)
    net = Net(module)
    body, head = net.weights["0.weight"][:, :, 0, 0], net.weights["4.weight"].view(5, 4, 2, 2)
    before = torch.einsum("ji,nihw->njhw", body, inputs)
    factor = torch.zeros_like(before)
    for sample, divided in zip(before, factor, strict=True):
        for values, places in zip(sample.chunk(groups), divided.chunk(groups), strict=True):
            centre = 0 if isinstance(norm, nn.RMSNorm) else values.mean()
            eps = norm.eps or torch.finfo(torch.float64).eps
            places.fill_(1 / ((values - centre).square().mean() + eps))
    gamma = torch.ones(4, 2, 2, dtype=torch.float64)
    if norm.weight is not None:
        gamma = gamma * norm.weight.detach().view(4, *norm.weight.shape[1:] or (1, 1))
    active = (norm(before) > 0) * factor
    z1 = torch.einsum("njhw,nihw->n", active, inputs.square()).sum()  # the same for each of the 5 outputs
    expected = z1 * torch.einsum("ji,jhw,kjhw->ji", body.square(), gamma.square(), head.square())
    masks = {n: torch.ones_like(net.weights[n], dtype=torch.bool) for n in net.prunable}
    scores = px(net, masks, Probe.of(net, data=[(inputs, None)]))
    torch.testing.assert_close(scores["0.weight"][:, :, 0, 0], expected)


def test_a_transformer_has_scores_in_every_layer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    net = Net(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    masks = {n: torch.ones_like(net.weights[n], dtype=torch.bool) for n in net.prunable}
    scores = px(net, masks, Probe.of(net, data=[(torch.randn(4, 3, 8), None)]))
    assert len(scores) == 8
    assert all(score.max() > 0 for score in scores.values())


def test_functions_of_torch_are_as_before_also_after_a_failure():
    before = nn.functional.relu, torch.relu, torch.Tensor.relu

    class Fails(nn.Linear):
        def forward(self, x):
            raise RuntimeError("no")

    with pytest.raises(ntksap.InputError, match=r"cannot be evaluated on inputs of shape .*: no"):
        ntksap.prune(nn.Sequential(nn.ReLU(), Fails(3, 2)), 0.5, "px", data=[(torch.ones(2, 3), None)])
    assert (nn.functional.relu, torch.relu, torch.Tensor.relu) == before
    assert torch.equal(nn.functional.relu(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))


def test_biases_and_batch_norm_at_initialisation_do_not_matter():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3, bias=False))
    normed = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    normed[0].weight, normed[4].weight = plain[0].weight, plain[3].weight
    data = [(torch.randn(8, 2, 4, 4), None)]
    first, second = (ntksap.prune(module, 0.8, "px", data=data) for module in (plain, normed))
    assert torch.equal(first["0.weight"], second["0.weight"])
    assert torch.equal(first["3.weight"], second["4.weight"])


def test_values_beyond_float32_do_not_hurt():
    module = ntksap.models.build("resnet20")
    masks = ntksap.prune(module, 0.9, "px", data=[(torch.randn(2, 3, 32, 32), None)], rounds=2)
    assert masks.kept == round(0.1 * masks.total)
    assert not masks.collapsed


def test_a_net_that_calls_other_relus_for_other_inputs_is_refused():
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            y = torch.relu(self.layer(x))
            return torch.relu(y) if x.min() >= 0 else y

    with pytest.raises(ntksap.InputError, match="same ReLUs"):
        ntksap.prune(Fickle(), 0.5, "px", data=[(-torch.ones(2, 3), None)])
