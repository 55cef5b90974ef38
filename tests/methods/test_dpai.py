"""DPaI against paths that are counted one by one, and against a loop in matrices with Adam written out."""

import functools
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import ntksap
from ntksap._base import generator_of
from ntksap.methods.dpai import direction, objective
from ntksap.net import Net, WeightView
from ntksap.pruning import Probe, allocation_of
from tests.cases import BY_NAME

SIZES = (4, 6, 5, 3)


def mlp():
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(SIZES)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.BatchNorm1d(SIZES[2]), nn.ReLU(), layers[2])


def test_a_chain_has_the_paths_that_can_be_counted():
    net = Net(mlp())
    generator = torch.Generator().manual_seed(1)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.5 for n in net.prunable}
    count, through = 0, {n: torch.zeros_like(m, dtype=torch.float64) for n, m in masks.items()}
    for units in itertools.product(*(range(size) for size in SIZES)):
        edges = [(name, units[i + 1], units[i]) for i, name in enumerate(net.prunable)]
        kept = [bool(masks[name][o, i]) for name, o, i in edges]
        count += all(kept)
        for k, (name, o, i) in enumerate(edges):  # the paths that there would be through this weight, if it were kept
            through[name][o, i] += all(kept[:k] + kept[k + 1 :])
    found, slope = objective(net, masks, Probe.of(net, input_shape=(4,)), torch.float64)
    assert count > 0
    assert found == pytest.approx(math.log(count), abs=1e-5)  # BatchNorm has an ε
    for name in masks:
        torch.testing.assert_close(slope[name], through[name] / count, rtol=1e-4, atol=1e-12)


def test_numbers_of_paths_beyond_float64_are_counted():
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(250)])
    net = Net(model)
    masks = {n: torch.ones(64, 64, dtype=torch.bool) for n in net.prunable}
    found, slope = objective(net, masks, Probe.of(net, input_shape=(64,)), torch.float64)
    assert found == pytest.approx(251 * math.log(64))
    assert all(torch.allclose(s, torch.full_like(s, 1 / 64**2)) for s in slope.values())


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class OwnRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZES[1]))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


LEFT_OUT = [
    nn.GELU(), nn.Softsign(), nn.LogSigmoid(), nn.Tanhshrink(), nn.Hardshrink(), nn.Softshrink(), nn.Threshold(0.1, 20),
    nn.BatchNorm1d(SIZES[1], track_running_stats=False), nn.LayerNorm(SIZES[1]), QuickGELU(), OwnRMSNorm(),
    Call(lambda x: x.clamp(0, 6)), Call(lambda x: torch.clamp_max_(x, 1)), Call(functional.normalize),
    Call(lambda x: functional.local_response_norm(x[..., None], 2)[..., 0]),
]  # fmt: skip


@pytest.mark.parametrize("middle", LEFT_OUT, ids=lambda module: type(module).__name__)
def test_every_activation_and_norm_is_left_out(middle):
    first, _, second, *_ = mlp()
    found = {}
    for name, layer in (("plain", nn.Identity()), ("own", middle)):
        net = Net(nn.Sequential(first, layer, second))
        generator = torch.Generator().manual_seed(1)
        masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.6 for n in net.prunable}
        found[name] = objective(net, masks, Probe.of(net, input_shape=(4,)), torch.float64)
    assert found["plain"][0] == found["own"][0] > 0
    assert all(torch.equal(a, b) for a, b in zip(*(slopes.values() for _, slopes in found.values()), strict=True))


@pytest.mark.parametrize("head", [nn.Softmax(-1), nn.LogSoftmax(-1), nn.Softmin(-1)], ids=lambda head: str(head)[:-5])
def test_a_softmax_at_the_end_changes_nothing(head):
    plain, headed = nn.Sequential(*mlp()), nn.Sequential(*mlp(), head)
    one, other = (
        ntksap.prune(model, 0.6, "dpai", input_shape=(4,), rounds=2, round_steps=30) for model in (plain, headed)
    )
    assert one == other
    assert one.info["objective"] == other.info["objective"]


def test_a_softmax_inside_weighs_the_paths_through_the_values():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.head = nn.Linear(2, 9), nn.Linear(3, 2)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.head((q @ k.transpose(-2, -1)).softmax(-1) @ v).log_softmax(-1)

    net = Net(Attention())
    masks = {n: torch.ones(net.weights[n].shape, dtype=torch.bool) for n in net.prunable}
    found, slope = objective(net, masks, Probe.of(net, input_shape=(5, 2)), torch.float64)
    # each of 5 positions takes the mean of values that have 2 paths, in 3 entries, which lead to 2 outputs
    assert found == pytest.approx(math.log(5 * 2 * 3 * 2))
    assert slope["qkv.weight"][6:].gt(0).all()
    assert slope["qkv.weight"][:6].abs().max() < 1e-12


def test_batch_norm_without_statistics_is_optimised_like_one_with_them():
    found = []
    for track in (True, False):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(8, track_running_stats=track)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 4))
        settings = {"input_shape": (3, 6, 6), "rounds": 2, "prune_lr": 0.02}
        found += [ntksap.prune(model, 0.95, "dpai", round_steps=40, **settings)]
        assert found[-1] != ntksap.prune(model, 0.95, "dpai", round_steps=1, **settings)
    assert found[0] == found[1]


def test_a_net_that_casts_or_makes_numbers_in_single_precision_is_counted_in_double():
    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.time, self.head = nn.Linear(4, 6), nn.Linear(1, 6), nn.Linear(6, 2)
            self.scale = [torch.ones(6, 6)]  # neither parameter nor buffer

        def forward(self, x):
            time = self.time(torch.ones(len(x), 1, dtype=torch.float32))
            return self.head((self.embed(x.float()) + time).to(torch.float16).float() @ self.scale[0])

    net = Net(Casting())
    masks = {n: torch.ones(net.weights[n].shape, dtype=torch.bool) for n in net.prunable}
    found, _ = objective(net, masks, Probe.of(net, input_shape=(4,)), torch.float64)
    assert found == pytest.approx(math.log(6 * 6 * 2 * (4 + 1)), rel=1e-12)


def test_a_net_that_does_not_take_double_precision_is_named():
    class Particular(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            if x.dtype != torch.float32:
                raise TypeError("single precision only")
            return self.head(x)

    with pytest.raises(ntksap.InputError, match=r"cannot count the paths of this net \(single precision only\)"):
        ntksap.prune(Particular(), 0.5, "dpai", input_shape=(4,), rounds=1)


def test_a_negative_number_of_paths_is_refused():
    model = nn.Sequential(nn.Linear(4, 6), Call(lambda x: x - 2 * x), nn.Linear(6, 2))
    with pytest.raises(ntksap.InputError, match="sum to a negative number, so something in it subtracts"):
        ntksap.prune(model, 0.5, "dpai", input_shape=(4,), rounds=1)


def test_a_norm_that_is_written_out_is_warned_about():
    model = nn.Sequential(nn.Linear(4, 6), Call(lambda x: x * torch.rsqrt(x.pow(2).mean() + 1e-6)), nn.Linear(6, 2))
    with pytest.warns(ntksap.ApproximationWarning, match="computes with pow, rsqrt, which stay") as caught:
        ntksap.prune(model, 0.5, "dpai", input_shape=(4,), rounds=2, round_steps=2)
    assert len(caught) == 1


def test_masks_without_a_path_are_warned_about():
    model = nn.Sequential(nn.Linear(4, 60), nn.ReLU(), nn.Linear(60, 2))
    with pytest.warns(ntksap.CollapseWarning, match="dpai has found no path") as caught:
        masks = ntksap.prune(model, 0.99, "dpai", input_shape=(4,), rounds=2, round_steps=1)
    assert masks.info["objective"] is None
    assert len(caught) == 1


class Residual(nn.Module):
    """A stem, a block with a shortcut, and a classifier, without norms."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.first = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.second = nn.Conv2d(6, 4, 3, padding=1)
        self.classifier = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.second(torch.relu(self.first(x))))
        return self.classifier(x.mean((2, 3)))


def test_a_branch_counts_beside_its_shortcut_with_the_input_of_each_layer_divided_by_its_largest_entry():
    net = Net(Residual())
    generator = torch.Generator().manual_seed(1)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.4 for n in net.prunable}

    def by_hand(stem, first, second, classifier):
        conv = functools.partial(nn.functional.conv2d, padding=1)
        x = conv(torch.ones(1, 3, 5, 5, dtype=torch.float64), stem)
        before = x.max()
        inner = conv(x / before, first)
        within = inner.max()
        x = (x + conv(inner / within, second)).mean((2, 3))
        last = x.max()
        return (before * within * last * (x / last @ classifier.T).sum()).log()

    given = tuple(masks[name].double() for name in net.prunable)
    found, slope = objective(net, masks, Probe.of(net, input_shape=(3, 5, 5)), torch.float64)
    assert found == pytest.approx(by_hand(*given).item(), rel=1e-12)
    for name, expected in zip(net.prunable, torch.autograd.functional.jacobian(by_hand, given), strict=True):
        torch.testing.assert_close(slope[name], expected, rtol=1e-10, atol=1e-14)


def test_the_direction_lifts_dead_units_and_kernels():
    generator = torch.Generator().manual_seed(0)
    slope = torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 3, 2, 2, generator=generator) < 0.3
    mask[2] = False
    mask[1], slope[1] = True, 0.0  # kept, but on no path
    got = direction(slope, mask, WeightView((4, 3, 2, 2)), 0.9, 0.25)
    assert not got[1].any()
    for o, i in itertools.product(range(4), range(3)):
        factor = 0.1 + 0.9 * (0.75 * (o in (1, 2)) + 0.25 * (not mask[o, i].any()))
        torch.testing.assert_close(got[o, i], factor * slope[o, i])


def test_the_whole_loop_is_adam_along_that_direction_inside_erk():
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False))
    shapes = {"0.weight": (8, 5), "2.weight": (4, 8)}
    steps, lr = 24, 0.05
    plan = ntksap.allocate(model, 0.7, "erk")
    assert dict(plan) == dict(allocation_of(shapes, 0.3, {n: float(sum(s)) for n, s in shapes.items()}))
    score = {
        n: torch.randn(s, generator=generator_of(0, 1, "score", n), dtype=torch.float64) for n, s in shapes.items()
    }
    mean, square = ({n: torch.zeros(s, dtype=torch.float64) for n, s in shapes.items()} for _ in range(2))

    def largest():
        return {n: s.abs() >= s.abs().flatten().sort(descending=True).values[plan[n] - 1] for n, s in score.items()}

    for step in range(steps):
        a, b = (m.double() for m in largest().values())
        count = (b @ a).sum()
        slope = {"0.weight": b.sum(0)[:, None].expand(8, 5), "2.weight": a.sum(1)[None].expand(4, 8)}
        rate = lr * (0.25 if step >= 18 else 0.5 if step >= 12 else 1)
        for name, mask in largest().items():
            g = slope[name] / (count if count > 0 else 1)
            flow = g * mask
            dead = flow.sum(1, keepdim=True) == 0
            step_along = -score[name].sign() * g * (0.01 + 0.99 * (0.5 * dead + 0.5 * (flow == 0)))
            mean[name] = 0.9 * mean[name] + 0.1 * step_along
            square[name] = 0.999 * square[name] + 0.001 * step_along**2
            unbiased = mean[name] / (1 - 0.9 ** (step + 1)), square[name] / (1 - 0.999 ** (step + 1))
            score[name] = score[name] - rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    masks = ntksap.prune(model, 0.7, "dpai", input_shape=(5,), rounds=2, round_steps=steps // 2, prune_lr=lr)
    assert all(torch.equal(masks[name], mask) for name, mask in largest().items())
    first = ntksap.prune(model, 0.7, "dpai", input_shape=(5,), rounds=1, round_steps=1, prune_lr=1e-9)
    assert masks != first  # it does move


def test_it_keeps_more_units_alive_than_chance_does():
    model = ntksap.models.build("lenet-5", input_shape=(1, 12, 12))
    shape = {"input_shape": (1, 12, 12)}
    alive = {}
    for method, options in (("random-erk", {}), ("dpai", {"rounds": 1, "round_steps": 60, "prune_lr": 0.05})):
        masks = ntksap.prune(model, 0.98, method, **shape, **options)
        alive[method] = sum(layer.live_channels for layer in ntksap.diagnose(model, masks, **shape).layers)
    assert alive["dpai"] > alive["random-erk"]


def test_wrong_options_are_named():
    case = BY_NAME["no-bias"]
    with pytest.raises(ntksap.InputError, match="alpha is a number, at least 0 and at most 1, not 2"):
        ntksap.prune(case.module(), 0.5, "dpai", alpha=2.0, **case.source())
    for steps in (1.5, 0):
        with pytest.raises(ntksap.InputError, match=f"round_steps is a whole number of at least 1, not {steps}"):
            ntksap.prune(case.module(), 0.5, "dpai", round_steps=steps, **case.source())
