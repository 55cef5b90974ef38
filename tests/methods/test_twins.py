"""Each score against a slow and obvious way to compute the same number, in float64."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.func import functional_call

import ntksap
from ntksap.methods import METHODS
from ntksap.methods.grasp import grasp
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.methods.snip import snip
from ntksap.methods.synflow import synflow
from ntksap.net import weight_views
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe
from ntksap.pruning.rounds import prune_rounds
from ntksap.pruning.schedules import exponential
from ntksap.pruning.selector import Selector
from tests.cases import BY_NAME


def setting(case_name: str, *, data: bool = True, density: float = 0.6):
    """A case in float64 with a random mask, its net and its probe."""
    case = BY_NAME[case_name]
    module = case.module().double().train()
    net = Net(module)
    probe = Probe.of(net, data=case.batches(1) if data else None, **case.source())
    generator = torch.Generator().manual_seed(5)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < density for n in net.prunable}
    return module, net, probe, masks


def loss_at(module, weights, batch, temperature=1.0):
    """Cross-entropy of the module itself, called with these weights, in train mode."""
    inputs, labels = batch
    # on a copy: functional_call changes a module that has two names, and its buffers
    output = functional_call(copy.deepcopy(module), weights, (inputs,))
    return nn.functional.cross_entropy(output / temperature, labels, reduction="sum")


@pytest.mark.parametrize("case", ["conv-bn", "residual", "no-bias", "tied"])
def test_snip_is_the_effect_of_removing_a_little_of_one_weight(case):
    module, net, probe, masks = setting(case)
    scores = snip(net, masks, probe)
    theta = {name: p.detach() for name, p in module.named_parameters()}
    step = 1e-6
    for name in net.prunable:
        for index in range(0, theta[name].numel(), 7):
            effects = []
            for sign in (1, -1):
                m = {n: mask.double() for n, mask in masks.items()}
                m[name].view(-1)[index] += sign * step
                weights = {**theta, **{n: theta[n] * m[n] for n in masks}}
                effects.append(loss_at(module, weights, probe.batches[0]))
            slope = (effects[0] - effects[1]) / (2 * step)
            assert scores[name].view(-1)[index] == pytest.approx(abs(float(slope)), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("case", ["conv-bn", "no-bias"])
def test_grasp_is_the_explicit_hessian_times_the_gradient(case):
    module, net, probe, masks = setting(case)
    theta = {name: p.detach() for name, p in module.named_parameters()}
    sizes = [theta[name].numel() for name in net.prunable]

    def loss(flat):
        parts = flat.split(sizes)
        weights = {name: part.view(theta[name].shape) for name, part in zip(net.prunable, parts, strict=True)}
        return loss_at(module, {**theta, **weights}, probe.batches[0], temperature=200)

    flat = torch.cat([(theta[name] * masks[name]).flatten() for name in net.prunable])
    gradient = torch.autograd.functional.jacobian(loss, flat)
    hessian = torch.autograd.functional.hessian(loss, flat)
    expected = torch.cat([theta[name].flatten() for name in net.prunable]) * (hessian @ gradient)
    got = torch.cat([score.flatten() for score in grasp(net, masks, probe).values()])
    assert expected.abs().max() > 0
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-14)


def test_grasp_keeps_the_largest_signed_scores():
    _, net, probe, masks = setting("no-bias")
    ones = {name: torch.ones_like(mask) for name, mask in masks.items()}
    scores = torch.cat([score.flatten() for score in grasp(net, ones, probe).values()])
    assert scores.min() < 0 < scores.max()
    case = BY_NAME["no-bias"]
    kept = ntksap.prune(case.module().double(), 0.5, "grasp", data=case.batches(1))
    chosen = torch.cat([mask.flatten() for mask in kept.values()])
    assert scores[chosen].min() >= scores[~chosen].max()


def test_synflow_is_a_sum_over_all_paths_through_a_weight():
    torch.manual_seed(0)
    sizes = (3, 4, 5, 2)
    module = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False)
    ).double()
    net = Net(module)
    generator = torch.Generator().manual_seed(1)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.7 for n in net.prunable}
    absolute = {n: (net.weights[n] * masks[n]).abs() for n in net.prunable}
    expected = {n: torch.zeros_like(w) for n, w in absolute.items()}
    for units in itertools.product(*(range(size) for size in sizes)):
        edges = [(name, units[i + 1], units[i]) for i, name in enumerate(net.prunable)]
        strength = torch.stack([absolute[name][row, column] for name, row, column in edges]).prod()
        for name, row, column in edges:
            expected[name][row, column] += strength
    scores = synflow(net, masks, Probe.of(net, input_shape=(3,)))
    for name in net.prunable:
        kept = masks[name]
        torch.testing.assert_close(scores[name][kept], expected[name][kept])


def test_synflow_conserves_its_sum_from_layer_to_layer():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(6, 3, bias=False),
    ).double()  # fmt: skip
    net = Net(module)
    ones = ntksap.Masks.ones({n: net.weights[n] for n in net.prunable})
    sums = [float(score.sum()) for score in synflow(net, ones, Probe.of(net, input_shape=(2, 5, 5))).values()]
    assert sums == pytest.approx([sums[0]] * 3, rel=1e-12)
    assert sums[0] > 0


def test_synflow_survives_values_beyond_float32():
    layers = [nn.Linear(64, 64, bias=False) for _ in range(60)]
    for layer in layers:
        nn.init.normal_(layer.weight)
    module = nn.Sequential(*layers)
    assert not torch.isfinite(Net(module)({n: p.abs() for n, p in module.named_parameters()}, torch.ones(1, 64))).all()
    masks = ntksap.prune(module, 0.9, "synflow", input_shape=(64,), rounds=3)
    assert masks.kept == round(0.1 * masks.total)


def test_force_without_return_is_iterative_snip():
    case = BY_NAME["conv-bn"]
    module = case.module()
    net = Net(module)
    probe = Probe.of(net, data=case.batches(), **case.source())
    force = METHODS["force"]
    views = weight_views({name: tuple(net.weights[name].shape) for name in net.prunable})
    plan = {"selector": Selector(0.2, 6, exponential, views)}
    *_, without_return = prune_rounds(net, force.score, probe, regrow=False, **plan)
    *_, with_return = prune_rounds(net, force.score, probe, regrow=True, **plan)
    iterative = ntksap.prune(module, 0.8, "iterative-snip", rounds=6, data=case.batches())
    assert without_return == iterative
    assert with_return != iterative


@pytest.mark.parametrize("case", ["conv-bn", "residual", "depthwise", "no-bias"])
def test_ntk_sap_finite_difference_tends_to_the_exact_tangent(case):
    """ε is so small that no ReLU switches between the two passes for these few inputs. A switch adds a term of order √ε
    to a score of order ε, with a probability of order √ε, so the limit is not uniform over inputs."""
    _, net, probe, masks = setting(case, data=False)
    errors = []
    for epsilon in (1e-8, 1e-10, 1e-12):
        finite, exact = (
            ntk_sap(net, masks, probe, epsilon=epsilon, draws=1, batch=6, tangent=tangent) for tangent in (False, True)
        )
        gap = sum(float((finite[n] - exact[n]).square().sum()) for n in net.prunable)
        size = sum(float(exact[n].square().sum()) for n in net.prunable)
        errors.append((gap / size) ** 0.5)
    assert errors[0] < 1e-2
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.1)  # the error falls like the standard deviation √ε
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.1)


def test_ntk_sap_mean_over_perturbations_tends_to_the_derivative_of_the_jacobian_norm():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    net = Net(module)
    probe = Probe.of(net, input_shape=(3,))
    masks = {n: torch.ones_like(net.weights[n], dtype=torch.bool) for n in net.prunable}
    masks["0.weight"][1, 2] = masks["2.weight"][0, 3] = False
    inputs = probe.noise(0, 5)

    def squared_jacobian_norm(first, second):
        m = {"0.weight": first, "2.weight": second}

        def f(*weights):
            named = dict(zip(net.prunable, weights, strict=True))
            return functional_call(module, {**net.weights, **named}, (inputs,))

        weights = tuple(net.weights[n] * m[n] for n in net.prunable)
        jacobians = torch.autograd.functional.jacobian(f, weights, create_graph=True)
        return sum((j * m[n]).square().sum() for n, j in zip(net.prunable, jacobians, strict=True))

    exact = torch.autograd.functional.jacobian(squared_jacobian_norm, tuple(masks[n].double() for n in net.prunable))
    errors = []
    for count in (40, 4000):
        options = {"draws": 1, "batch": 5, "fresh_weights": False, "perturbations": count, "epsilon": 1.0}
        score = ntk_sap(net, masks, probe, tangent=True, **options)
        gap = sum(float((score[n] / count - e.abs()).square().sum()) for n, e in zip(net.prunable, exact, strict=True))
        errors.append((gap / sum(float(e.square().sum()) for e in exact)) ** 0.5)
    assert errors[1] < 0.05  # 1/√4000, times the spread of a single perturbation
    assert errors[1] < 0.5 * errors[0]


def test_ntk_sap_finite_difference_has_the_same_mean():
    """The paper's own estimator, ε small, against the exact tangent on the same perturbations."""
    _, net, probe, masks = setting("no-bias", data=False)
    options = {"draws": 3, "batch": 4, "perturbations": 5, "epsilon": 1e-10}
    finite, exact = (ntk_sap(net, masks, probe, tangent=tangent, **options) for tangent in (False, True))
    for name in net.prunable:
        torch.testing.assert_close(finite[name], exact[name], rtol=1e-3, atol=float(exact[name].max()) * 1e-4)


def test_ntk_sap_uses_the_batch_statistics_of_the_unperturbed_net_with_unbiased_variance():
    case = BY_NAME["conv-bn"]
    module = case.module().double()
    net = Net(module)
    inputs = case.batches(1)[0][0].double()
    convolved = nn.functional.conv2d(inputs, module[0].weight, module[0].bias)
    statistics = net.statistics(net.weights, inputs)
    torch.testing.assert_close(statistics["1.running_mean"], convolved.mean((0, 2, 3)))
    torch.testing.assert_close(statistics["1.running_var"], convolved.var((0, 2, 3), unbiased=True))
    normalised = net(net.weights, inputs, norm=statistics)
    by_batch = net(net.weights, inputs, norm="batch")
    assert not torch.allclose(normalised, by_batch)  # train mode divides by the biased variance
    torch.testing.assert_close(normalised, by_batch, rtol=0.2, atol=0.1)


def test_ntk_sap_options_change_what_is_drawn():
    case = BY_NAME["conv-bn"]
    net = Net(case.module())
    probe = Probe.of(net, data=case.batches(), **case.source())
    masks = {n: torch.ones_like(net.weights[n], dtype=torch.bool) for n in net.prunable}
    options = [{}, {"draws": 3}, {"perturbations": 2}, {"fresh_weights": False}, {"real_inputs": True}, {"batch": 7}]
    scores = [ntk_sap(net, masks, probe, **{"draws": 2, "batch": 6, **o})["0.weight"] for o in options]
    for first, second in itertools.combinations(scores, 2):
        assert not torch.allclose(first, second)
    with pytest.raises(ntksap.InputError, match="needs data"):
        ntk_sap(net, masks, Probe.of(net, **case.source()), real_inputs=True)
    with pytest.raises(ntksap.InputError, match="at least 1"):
        ntksap.prune(case.module(), 0.5, "ntk-sap", draws=0, **case.source())
