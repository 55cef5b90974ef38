"""The closed form with one number per layer: the mean of `ntk-sap-analytic`, without its weights."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ntksap
from ntksap.methods import layer_densities, moments
from ntksap.methods.layer_densities import _extrapolated, _shrunk, scores_of
from ntksap.methods.moments import MomentTensor, Uniform, initial_moments, module_rules
from ntksap.methods.ntk_sap_analytic import expected_trace
from ntksap.net import Net, shell
from ntksap.pruning import Probe
from tests.cases import CASES, Case

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
F64 = torch.float64


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.GELU(),
        nn.ConvTranspose2d(6, 4, 3, groups=2, output_padding=0),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


@pytest.mark.parametrize("case", [*CASES, Case("grouped", grouped, (4, 6, 6))], ids=lambda case: case.name)
def test_scores_are_the_means_that_the_trace_of_single_weights_has(case: Case):
    """The slow twin: every mask entry of a layer holds its density, and the derivatives of all entries are summed."""
    net = Net(case.module().double())
    probe = Probe.of(net, **case.source())
    densities = torch.linspace(0.3, 0.9, len(net.prunable), dtype=F64).numpy()
    variances, fixed = initial_moments(net)
    with module_rules(net._skeleton):
        fast = scores_of(net, probe)(densities)

    leaves = {
        name: torch.full(net.weights[name].shape, float(d), dtype=F64, requires_grad=True)
        for name, d in zip(net.prunable, densities, strict=True)
    }
    parameters = {name: MomentTensor(known) for name, known in fixed.items()}
    for name, leaf in leaves.items():
        parameters[name] = MomentTensor(moments.Weight(leaf, torch.tensor(variances[name], dtype=F64)))
    ones = probe.ones(F64)
    inputs = ntksap.net.map_tensors(ones, lambda t: MomentTensor(moments.noise(t)) if t.is_floating_point() else t)
    with module_rules(net._skeleton):
        trace = net(parameters, inputs).moments.tangent.sum()
    slow = [float(g.sum()) for g in torch.autograd.grad(trace.log(), list(leaves.values()))]
    assert fast.tolist() == pytest.approx(slow, rel=1e-4, abs=1e-9)


def computed_in_every_round(net: Net, probe: Probe, density: float, rounds: int) -> np.ndarray:
    """Return what `layer_densities` would, without extrapolation."""
    sizes = np.array([float(net.weights[name].numel()) for name in net.prunable])
    scores, found = scores_of(net, probe), np.ones(len(sizes))
    with module_rules(net._skeleton):
        for index in range(1, rounds + 1):
            found = _shrunk(found, scores(found) / sizes, sizes, 0 * sizes, density ** (index / rounds))
    return found


@pytest.mark.parametrize("density", [0.1, 0.018])
def test_rounds_that_extrapolate_scores_hardly_differ_from_rounds_that_compute_them(density):
    net = Net(ntksap.models.build("resnet20", seed=0))
    probe = Probe.of(net, input_shape=(3, 32, 32))
    sizes = np.array([float(net.weights[name].numel()) for name in net.prunable])
    slow = computed_in_every_round(net, probe, density, rounds=20)
    fast = np.array(list(layer_densities(net, probe, density).values()))
    assert fast @ sizes == pytest.approx(density * sizes.sum())
    moved = abs(fast - slow) @ sizes / 2
    assert moved < 0.002 * density * sizes.sum()
    assert fast.tolist() == pytest.approx(slow.tolist(), rel=0.01)


def test_extrapolation_is_exact_where_logarithms_are_parabolas_and_leaves_zeros():
    def score(index):
        return np.array([2.0, 0.0, math.exp(-0.3 * index - 0.01 * index**2)])

    known = {index: score(index) for index in (2, 3, 5)}
    assert _extrapolated(known, 3) is known[3]
    assert _extrapolated(known, 7).tolist() == pytest.approx(score(7).tolist())
    known[5][2] = 1e-200  # a layer that is being cut off
    assert 0 < _extrapolated(known, 7)[2] < math.inf


def test_with_rescaling_weights_have_the_variance_that_they_will_have():
    module = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)).double()
    net = Net(module)
    probe = Probe.of(net, input_shape=(6,))
    densities = torch.tensor([0.2, 0.5], dtype=F64)
    with module_rules(net._skeleton):
        assumed = scores_of(net, probe, rescale=True)(densities.numpy())
    # K = E ‖∂f/∂w₁‖² + E ‖∂f/∂w₂‖², E w² = (2/fan-in)·(σ²/d)·m in the derivative with respect to m, at m = d
    masks = densities.clone().requires_grad_()
    first, second = (m / d.detach() * 2 for m, d in zip(masks, densities, strict=True))
    hidden = first / 2  # of an open or closed gate: half of E (w₁z)² = 6 · (2/6) · m/d
    trace = 3 * (masks[0] * 6 / 2 * second / 5 * 5 + masks[1] * 5 * hidden)
    (slow,) = torch.autograd.grad(trace.log(), masks)
    assert assumed.tolist() == pytest.approx(slow.tolist())


def test_a_round_keeps_the_share_of_weights_whose_noisy_score_is_above_the_threshold():
    sizes, scores = torch.tensor([4000.0, 1000.0], dtype=F64), torch.tensor([1.0, 3.0], dtype=F64)
    found = _shrunk(
        torch.ones(2, dtype=F64).numpy(), scores.numpy(), sizes.numpy(), torch.zeros(2).double().numpy(), 0.3
    )
    assert float(found @ sizes.numpy()) == pytest.approx(1500, rel=1e-9)
    # both have the same threshold τ = s·√2·erfc⁻¹(d)
    taus = [s * math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - d))) for s, d in zip((1.0, 3.0), found, strict=True)]
    assert taus[0] == pytest.approx(taus[1], rel=1e-6)
    drawn = scores[:, None] * torch.randn(2, 200_000, dtype=F64, generator=torch.Generator().manual_seed(0)).abs()
    assert (drawn > taus[0]).double().mean(1).tolist() == pytest.approx(found.tolist(), abs=0.005)


@pytest.mark.parametrize(("sparsity", "flops"), [(0.8926, 11.10), (0.982, 2.62)])
def test_resnet20_has_the_layer_densities_of_the_ranking_of_single_weights(sparsity, flops):
    model = ntksap.models.build("resnet20")
    plan = ntksap.allocate(model, sparsity, "ntk-sap", input_shape=(3, 32, 32))
    assert plan.kept == round((1 - sparsity) * plan.total)
    masks = ntksap.prune(model, sparsity, "random", allocation=plan)
    assert ntksap.cost(model, masks, input_shape=(3, 32, 32)).sparse / 1e6 == pytest.approx(flops, rel=0.02)


@pytest.mark.slow
def test_resnet20_is_within_three_percent_of_the_mean_ranking_of_single_weights():
    model = ntksap.models.build("resnet20")
    plan = ntksap.allocate(model, 0.8926, "ntk-sap", input_shape=(3, 32, 32))
    settings = {"scope": "global", "input_shape": (3, 32, 32)}
    several = [ntksap.prune(model, 0.8926, "ntk-sap-analytic", seed=seed, **settings) for seed in range(6)]
    for name, density in plan.densities().items():
        mean = sum(float(masks[name].double().mean()) for masks in several) / len(several)
        assert density == pytest.approx(mean, rel=0.03), name


@each_case
def test_the_meta_device_gives_the_same_numbers(case: Case):
    with torch.device("meta"):
        empty = case.make()
    plans = [ntksap.allocate(m, 0.6, "ntk-sap", rounds=3, **case.source()) for m in (empty, case.module())]
    assert dict(plans[0]) == dict(plans[1])


def test_nothing_of_the_size_of_a_weight_is_made():
    """Twenty billion weights: a byte for each would not fit."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100_000, 100_000), nn.ReLU(), nn.Linear(100_000, 100_000))
    plan = ntksap.allocate(model, 0.5, "ntk-sap", rounds=2, input_shape=(100_000,))
    assert plan.kept == 10_000_000_000


def test_another_initialiser_is_drawn_and_cannot_be_on_the_meta_device():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    by_reset = ntksap.allocate(model, 0.5, "ntk-sap", init="reset", input_shape=(8,))
    assert by_reset.kept == 40
    with pytest.raises(ntksap.InputError, match="cannot be drawn"):
        ntksap.allocate(model.to("meta"), 0.5, "ntk-sap", init="reset", input_shape=(8,))


def test_buffers_without_values_are_named():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("table", torch.arange(4.0))

        def forward(self, x):
            return self.layer(x) * self.table

    with torch.device("meta"):
        model = Odd()
    with pytest.raises(ntksap.InputError, match="buffer 'table' has no values"):
        shell(model, ())
    assert shell(Odd(), ()).table.tolist() == [0, 1, 2, 3]


def test_parameters_that_nothing_draws_keep_their_values():
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
            self.scale = nn.Parameter(torch.full((8,), scale))

        def forward(self, x):
            return self.last(self.first(x) + self.second(x) * self.scale)

    small, large = (ntksap.allocate(Scaled(s), 0.8, "ntk-sap", input_shape=(8,)) for s in (0.1, 10.0))
    assert small["second.weight"] < small["first.weight"]
    assert large["second.weight"] > large["first.weight"]


def test_a_net_that_no_layer_can_change_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ntksap.InputError, match="no prunable layer reaches the output"):
        ntksap.allocate(model, 0.5, "ntk-sap", input_shape=(4,), output=lambda y: y.detach())


def test_densities_have_the_asked_mean_and_floors_hold():
    case = next(case for case in CASES if case.name == "residual")
    net = Net(case.module())
    probe = Probe.of(net, **case.source())
    least = dict.fromkeys(net.prunable, 0.05)
    found = layer_densities(net, probe, 0.1, rounds=8, least=least)
    sizes = {name: net.weights[name].numel() for name in found}
    assert all(0.05 <= density <= 1 for density in found.values())
    assert sum(found[n] * sizes[n] for n in found) == pytest.approx(0.1 * sum(sizes.values()))


def test_uniform_weights_behave_as_weights_where_no_layer_takes_them():
    weight = Uniform(torch.tensor(0.5, dtype=F64), torch.empty(2, 3, device="meta"), torch.tensor(4.0, dtype=F64))
    assert weight.each(lambda mask: mask.T).shape == (3, 2)
    assert weight.square.tolist() == [[2.0] * 3] * 2
    assert weight.tangent.tolist() == [[0.5] * 3] * 2
    assert float(weight.mean.sum()) == 0


def test_the_trace_is_that_of_constant_masks():
    net = Net(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    probe = Probe.of(net, input_shape=(6,))
    trace, _ = expected_trace(net, {n: torch.full(net.weights[n].shape, 0.5) for n in net.prunable}, probe)
    assert float(trace.detach()) > 0


@pytest.mark.parametrize("rounds", [4, 11])
def test_with_few_rounds_nothing_is_extrapolated(rounds):
    net = Net(ntksap.models.build("resnet8", seed=0))
    probe = Probe.of(net, input_shape=(3, 32, 32))
    slow = computed_in_every_round(net, probe, 0.018, rounds)
    fast = layer_densities(net, probe, 0.018, rounds=rounds)
    assert list(fast.values()) == pytest.approx(slow.tolist(), rel=1e-9)


def test_gradients_that_are_off_do_not_matter():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    plan = ntksap.allocate(model, 0.5, "ntk-sap", input_shape=(8,))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert ntksap.allocate(model, 0.5, "ntk-sap", input_shape=(8,)) == plan


@pytest.mark.parametrize(
    ("layer", "shape", "text"),
    [
        (nn.Linear(8, 4), (9,), "9 inputs and has weights for 8"),
        (nn.Conv2d(4, 6, 3, groups=2), (6, 8, 8), "6 inputs and has weights for 4"),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (6, 8, 8), "6 inputs and has weights for 4"),
    ],
)
def test_inputs_of_the_wrong_size_are_noticed_although_nothing_of_that_size_is_computed(layer, shape, text):
    with pytest.raises(ntksap.InputError, match=text):
        ntksap.allocate(layer, 0.5, "ntk-sap", input_shape=shape)


def test_moments_that_are_not_finite_are_named():
    class Exp(nn.Module):
        def forward(self, x):
            return (x * 1e6).exp()

    model = nn.Sequential(nn.Linear(4, 4), Exp(), nn.Linear(4, 2))
    with pytest.raises(ntksap.InputError, match=r"cannot follow exp in 1 \(Exp\): its moments are NaN or infinite"):
        ntksap.allocate(model, 0.5, "ntk-sap", input_shape=(4,))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the older forms
@pytest.mark.filterwarnings("ignore::ntksap.NotPrunableWarning")
@pytest.mark.parametrize(
    "computed",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_weights_that_are_computed_from_others(computed):
    model = nn.Sequential(computed(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = ntksap.allocate(model, 0.5, "ntk-sap", input_shape=(8,))
    assert plan.kept == round(0.5 * plan.total)
    assert all(plan.values())
    masks = ntksap.prune(model, 0.5, "ntk-sap-analytic", input_shape=(8,))
    assert {name: int(mask.sum()) for name, mask in masks.items()} == dict(plan)


def test_a_tensor_that_a_module_merely_holds_is_no_computed_weight():
    class Scaled(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.table = torch.ones(1)

        def forward(self, x):
            return super().forward(x) * self.table

    plans = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = nn.Sequential(Scaled(8, 16), nn.ReLU(), nn.Linear(16, 2))
        model[0].table = torch.ones(1)
        plans.append(ntksap.allocate(model, 0.5, "ntk-sap", input_shape=(8,)))
    assert dict(plans[0]) == dict(plans[1])


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor with values that any function returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.is_meta and 0 not in result.stride():
            self.size = max(self.size, result.numel())
        return result


@pytest.mark.parametrize("name", ["resnet20", "vgg16-bn"])
def test_one_channel_stands_for_all(name):
    model = ntksap.models.build(name, seed=0)
    net = Net(shell(model, [name for name, p in model.named_parameters() if p.dim() > 1]), device="cpu")
    with module_rules(net._skeleton):
        scores = scores_of(net, Probe.of(net, input_shape=(3, 32, 32)))
        with Largest() as largest:
            scores(np.ones(len(net.prunable)))
    assert largest.size == 4 * 32 * 32  # the four fields of one channel, nowhere more
