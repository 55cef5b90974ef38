"""The rules one by one, how torch's functions reach them, and how users add to them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ntksap
from ntksap.methods.moments import RULES, Moments, MomentTensor, elementwise, noise, rule
from ntksap.methods.moments.activations import Effect, leaky, quadrature
from ntksap.methods.moments.value import FIELDS
from ntksap.methods.ntk_sap_analytic import expected_trace, ntk_sap_analytic
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe

F64 = torch.float64


def number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=F64)


def integrals(function, mean: float, variance: float, correlation: float) -> Effect:
    """What an activation does to two correlated Gaussians, on a grid of 1601² points."""
    grid = torch.linspace(-8, 8, 1601, dtype=F64)
    weight = torch.exp(-grid.square() / 2)
    weight = weight / weight.sum()
    deviation = math.sqrt(variance)
    first = (mean + deviation * grid).requires_grad_()
    second = mean + deviation * (correlation * grid[:, None] + math.sqrt(1 - correlation**2) * grid)
    second.requires_grad_()
    values, others = function(first), function(second)
    (slopes,) = torch.autograd.grad(values.sum(), first)
    (other_slopes,) = torch.autograd.grad(others.sum(), second)
    values, others = values.detach(), others.detach()
    size = variance + mean**2
    gain = (weight * slopes * (other_slopes @ weight)).sum()
    product = (weight * values * (others @ weight)).sum()
    return Effect(
        (weight * values).sum(),
        (weight * values.square()).sum() / size,
        (weight * slopes.square()).sum(),
        gain,
        (product - gain * (correlation * variance + mean**2)) / size,
    )


@pytest.mark.parametrize("slope", [0.0, 0.2, -1.0])
@pytest.mark.parametrize(("mean", "correlation"), [(0.0, 0.0), (0.0, 0.6), (0.7, 0.0), (0.7, 0.5), (-0.4, 0.8)])
def test_relu_of_a_gaussian(slope, mean, correlation):
    expected = integrals(lambda z: F.leaky_relu(z, slope), mean, 1.7, correlation)
    found = leaky(slope, number(mean), number(1.7), number(correlation))
    for name in ("mean", "square", "gain"):
        assert float(getattr(found, name)) == pytest.approx(float(getattr(expected, name)), abs=3e-3), name
    for name in ("cross_gain", "cross"):  # a cut series and an interpolation where there is a mean
        assert float(getattr(found, name)) == pytest.approx(float(getattr(expected, name)), abs=3e-2), name


@pytest.mark.parametrize("function", [F.gelu, F.silu, torch.tanh, F.softplus], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("mean", "correlation"), [(0.0, 0.0), (0.5, 0.7)])
def test_any_function_of_a_gaussian(function, mean, correlation):
    expected = integrals(function, mean, 1.3, correlation)
    found = quadrature(function, number(mean), number(1.3), number(correlation))
    for name, value in found._asdict().items():
        assert float(value) == pytest.approx(float(getattr(expected, name)), abs=1e-2), name


def out_of(forward, *parts: nn.Module, shape=(2, 6, 6)) -> Moments:
    """The moments that a module with this forward pass ends with."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, x):
            return forward(x, *self.parts)

    kept: list[Moments] = []
    net = Net(Own().double(), output=lambda y: kept.append(y.moments) or y)
    masks = {name: torch.ones_like(net.weights[name]) for name in net.prunable}
    expected_trace(net, masks, Probe.of(net, input_shape=shape))
    return kept[0]


def same(a: Moments, b: Moments) -> bool:
    return all(torch.equal(x, y) for x, y in ((getattr(a, name), getattr(b, name)) for name in FIELDS))


def test_a_function_a_method_a_module_and_its_inplace_form_are_one():
    conv = nn.Conv2d(2, 4, 3, padding=1)

    def inplace(x, c):
        y = c(x)
        y.relu_()
        return y

    forms = [
        lambda x, c: torch.relu(c(x)), lambda x, c: c(x).relu(), lambda x, c: F.relu(c(x), inplace=True),
        lambda x, c: nn.ReLU(inplace=True)(c(x)), inplace,
    ]  # fmt: skip
    results = [out_of(form, conv) for form in forms]
    assert results[0].tangent.sum() > 0
    assert all(same(results[0], other) for other in results)


def test_pooling_keeps_what_positions_share_and_averages_out_the_rest():
    x = Moments(*(torch.full((1, 1, 4, 4), v, dtype=F64) for v in (3.0, 1.0, 5.0, 2.0, 0.5)))
    for pooled in (RULES["avg_pool2d"](x, 2), RULES["adaptive_avg_pool2d"](x, 2)):
        values = [float(getattr(pooled, name)[0, 0, 0, 0]) for name in FIELDS]
        assert values == [(3 - 1) / 4 + 1, 1.0, (5 - 2) / 4 + 2, 2.0, 0.5]
    assert float(RULES["mean"](x, (2, 3)).square) == pytest.approx((3 - 1) / 16 + 1)


def test_batch_norm_leaves_variance_one_and_nothing_that_inputs_share():
    y = out_of(
        lambda x, a, n, b: n(b(torch.relu(a(x)))), nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(5),
        nn.Conv2d(4, 5, 3, padding=1),
    )  # fmt: skip
    assert y.square.mean((0, 2, 3)).tolist() == pytest.approx([1.0] * 5, abs=1e-3)
    assert not y.cross.any()
    assert not y.mean.any()


def test_a_sum_of_branches_adds_variances_and_means():
    x = Moments(*(torch.full((1, 1), v, dtype=F64) for v in (3.0, 1.0, 5.0, 2.0, 0.5)))
    y = RULES["add"](x, 2.0)
    assert float(y.square) == pytest.approx(3 + 4 + 2 * 0.5 * 2)
    assert float(y.mean) == 2.5
    assert float(y.variance) == pytest.approx(float(x.variance))
    assert float(RULES["mul"](x, -2.0).square) == 12


def attend(x, mix, out):
    q, k, v = mix(x).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k, v))
    return out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attend_by_hand(x, mix, out):
    q, k, v = mix(x).chunk(3, -1)
    q, k, v = (part.reshape(1, 5, 2, 4).permute(0, 2, 1, 3) for part in (q, k, v))
    shares = torch.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
    return out((shares @ v).transpose(1, 2).reshape(1, 5, 8))


def test_attention_is_the_same_by_hand_by_function_and_by_module():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    mix, out = nn.Linear(8, 24), nn.Linear(8, 8)
    by_hand, by_function = out_of(attend_by_hand, mix, out, shape=(5, 8)), out_of(attend, mix, out, shape=(5, 8))
    for name in ("square", "tangent"):
        torch.testing.assert_close(getattr(by_hand, name), getattr(by_function, name))
    by_module = out_of(lambda x, a: a(x, x, x)[0], attention, shape=(5, 8))
    torch.testing.assert_close(by_module.square, by_function.square, rtol=0.3, atol=0)  # measured variances differ


def test_queries_and_keys_have_a_score():
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    net = Net(module, output=lambda result: result[0])
    masks = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}
    probe = Probe.of(net, inputs=lambda batch, generator: (torch.randn(batch, 5, 8),) * 3)
    queries, keys, values = ntk_sap_analytic(net, masks, probe, noise=False)["in_proj_weight"].chunk(3)
    assert float(queries.min()) > 0
    assert float(keys.min()) > 0
    assert float(values.mean()) > float(queries.mean())


def test_a_causal_mask_leaves_the_first_token_to_itself():
    token = noise(torch.ones(1, 1, 3, 4, dtype=F64))
    mixed = RULES["scaled_dot_product_attention"](token, token, token, is_causal=True)
    wide = RULES["scaled_dot_product_attention"](token, token, token)
    assert float(mixed.square[0, 0, 0, 0]) > float(mixed.square[0, 0, 2, 0])
    torch.testing.assert_close(mixed.square[0, 0, 2], wide.square[0, 0, 2])


def test_a_weight_stays_a_weight_when_it_is_transposed_or_cut():
    layer = nn.Linear(6, 4)
    forms = [
        lambda x, c: c(x),
        lambda x, c: x @ c.weight.t() + c.bias,
        lambda x, c: torch.addmm(c.bias, x, c.weight.T),
        lambda x, c: torch.cat([F.linear(x, part) for part in c.weight.split(2)], -1) + c.bias,
    ]
    first, *others = [out_of(lambda x, c, form=form: form(x.relu(), c), layer, shape=(6,)) for form in forms]
    for other in others:
        torch.testing.assert_close(other.square, first.square)
        torch.testing.assert_close(other.tangent, first.tangent)


def test_a_norm_written_by_hand_is_the_function():
    def by_hand(x, layer):
        y = layer(x)
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)

    layer = nn.Linear(6, 16)
    first, second = out_of(by_hand, layer, shape=(6,)), out_of(lambda x, c: F.rms_norm(c(x), (16,)), layer, shape=(6,))
    torch.testing.assert_close(first.square, second.square, rtol=1e-3, atol=0)
    torch.testing.assert_close(first.tangent, second.tangent, rtol=1e-3, atol=0)


def test_a_function_without_a_rule_is_named_and_may_be_given_one():
    forward = lambda x, c: torch.asinh(c(x))  # noqa: E731
    layer = nn.Linear(6, 4)
    with pytest.raises(ntksap.InputError, match=r"cannot follow asinh in the module \(Own\): there is no rule"):
        out_of(forward, layer, shape=(6,))
    try:
        rule("asinh")(lambda x: elementwise(torch.asinh, x))
        assert (out_of(forward, layer, shape=(6,)).tangent > 0).all()
        with pytest.raises(ntksap.InputError, match="already"):
            rule("asinh")(lambda x: x)
    finally:
        del RULES["asinh"]


class Opaque(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() ** 3)


def test_a_module_whose_inside_is_closed_says_so_and_may_be_given_a_rule():
    forward = lambda x, c, o: o(c(x))  # noqa: E731
    parts = (nn.Linear(6, 4), Opaque())
    with pytest.raises(ntksap.InputError, match="numpy"):
        out_of(forward, *parts, shape=(6,))
    try:
        rule(Opaque)(lambda module, x: elementwise(lambda z: z**3, x))
        assert out_of(forward, *parts, shape=(6,)).tangent.sum() > 0
    finally:
        del RULES[Opaque]


def test_values_cannot_be_asked_for():
    with pytest.raises(ntksap.InputError, match="asks for the values"):
        out_of(lambda x, c: c(x) if x.sum() > 0 else x, nn.Linear(6, 6), shape=(6,))
    assert MomentTensor(noise(torch.ones(2, 3))).shape == (2, 3)
