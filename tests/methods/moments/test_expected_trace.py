"""The expected trace in closed form against paths counted one by one, and against exact traces of many draws."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from ntksap.methods.moments import RULES, Moments, rule
from ntksap.methods.ntk_sap_analytic import expected_trace
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe


class Residual(nn.Module):
    """x + conv(relu(conv(x))), with a ReLU behind the sum (as ResNets have it) or none."""

    def __init__(self, channels: int, relu_behind: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.relu_behind = relu_behind

    def forward(self, x):
        y = x + self.second(torch.relu(self.first(x)))
        return torch.relu(y) if self.relu_behind else y


def mlp() -> nn.Module:
    layers = [nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(5, 2, bias=False))


def strided() -> nn.Module:
    """Padding, stride and groups."""
    layers = [nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.ReLU()]
    layers += [nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 2, bias=False))


def residual(relu_behind: bool) -> nn.Module:
    blocks = [Residual(6, relu_behind), Residual(6, relu_behind)]
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.ReLU(), *blocks, nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * 16, 2, bias=False),
    )  # fmt: skip


def masked(module: nn.Module, density: float = 0.7):
    net = Net(module.double())
    generator = torch.Generator().manual_seed(3)
    return net, {n: torch.rand(net.weights[n].shape, generator=generator) < density for n in net.prunable}


def variances(net: Net) -> dict[str, float]:
    """Of the default initialiser, exactly."""
    return {name: 2 / net.weights[name][0].numel() for name in net.prunable}


@pytest.fixture
def exact_variances(monkeypatch):
    """In place of measured ones, so that a twin can be met to rounding."""

    def known(net: Net):
        zero = torch.zeros(())
        return {name: (torch.tensor(value, dtype=torch.float64), zero) for name, value in variances(net).items()}

    monkeypatch.setitem(expected_trace.__globals__, "parameter_moments", known)


def monte_carlo(net: Net, module: nn.Module, masks, shape, draws: int, seed: int = 0) -> tuple[float, float]:
    """Mean and standard error of Σ_w m_w ‖∂f/∂w‖² over weight draws, each with its own input."""
    generator = torch.Generator().manual_seed(seed)

    def trace(weights, z):
        jacobian = jacrev(lambda w: functional_call(module, w, (z[None],))[0])(weights)
        return torch.stack([(jacobian[n].square() * masks[n]).sum() for n in masks]).sum()

    spread = variances(net)
    weights = {
        n: torch.randn(draws, *net.weights[n].shape, generator=generator, dtype=torch.float64)
        * (math.sqrt(spread[n]) * masks[n])
        for n in net.prunable
    }
    inputs = torch.randn(draws, *shape, generator=generator, dtype=torch.float64)
    traces = vmap(trace, chunk_size=500)(weights, inputs)
    return float(traces.mean()), float(traces.std() / math.sqrt(draws))


def closed_form(net: Net, masks, shape) -> float:
    return float(expected_trace(net, masks, Probe.of(net, input_shape=shape))[0].detach())


def test_the_trace_and_its_derivative_are_sums_over_all_paths(exact_variances):
    net, masks = masked(mlp())
    spread = variances(net)
    total, by_weight = 0.0, {n: torch.zeros_like(net.weights[n]) for n in net.prunable}
    for units in itertools.product(range(4), range(6), range(5), range(2)):
        edges = [(name, units[i + 1], units[i]) for i, name in enumerate(net.prunable)]
        strength = math.prod(spread[name] for name in spread) / 4 * sum(1 / s for s in spread.values())
        kept = [bool(masks[name][row, column]) for name, row, column in edges]
        total += strength * all(kept)
        for i, (name, row, column) in enumerate(edges):
            by_weight[name][row, column] += strength * all(kept[:i] + kept[i + 1 :])
    trace, leaves = expected_trace(net, masks, Probe.of(net, input_shape=(4,)))
    assert float(trace.detach()) == pytest.approx(total, rel=1e-5)
    for name, gradient in net.gradient(trace, leaves).items():
        torch.testing.assert_close(gradient.double(), by_weight[name], rtol=1e-5, atol=1e-7 * total)


@pytest.mark.parametrize(("make", "shape"), [(mlp, (4,)), (strided, (2, 6, 6))])
def test_without_normalisation_the_trace_is_the_mean_of_exact_traces(make, shape, exact_variances):
    module = make()
    net, masks = masked(module)
    mean, error = monte_carlo(net, module, masks, shape, 6000)
    assert error < 0.03 * mean
    assert abs(closed_form(net, masks, shape) - mean) < 3 * error


def test_each_layer_of_a_chain_has_the_same_sum_of_scores(exact_variances):
    """As SynFlow conserves its sum: the trace is linear in the mask of every layer."""
    net, masks = masked(strided())
    trace, leaves = expected_trace(net, masks, Probe.of(net, input_shape=(2, 6, 6)))
    for name, gradient in net.gradient(trace, leaves).items():
        assert float((gradient * masks[name]).sum()) == pytest.approx(float(trace.detach()), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("relu_behind", [False, True])
def test_residual_nets_meet_exact_traces_nearly(relu_behind, exact_variances):
    """A stream behind ReLUs has a mean, and its tangents sit where it is open, which Gaussian gates do not know: 15 %
    are missed. Without means it is 80 %."""
    module = residual(relu_behind)
    net, masks = masked(module)
    mean, error = monte_carlo(net, module, masks, (2, 4, 4), 6000)
    found = closed_form(net, masks, (2, 4, 4))
    assert abs(found - mean) < (0.2 if relu_behind else 0.03) * mean + 2 * error
    with centred_relu():
        naive = closed_form(net, masks, (2, 4, 4))
    assert abs(naive - mean) > abs(found - mean)


class centred_relu:
    """ReLU as if nothing had a mean: every moment is halved."""

    def __enter__(self):
        self.before = RULES["relu"]

        @rule("relu", replace=True)
        def half(x, inplace=False):
            return Moments(x.square / 2, x.cross / 2, x.tangent / 2, x.tangent_cross / 2, torch.zeros_like(x.mean))

    def __exit__(self, *_):
        RULES["relu"] = self.before
