"""Convolutions with cheap derivatives of every order against torch's own."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ntksap import Net
from ntksap.net.kernels.convolution import PlainConv2d
from ntksap.net.kernels.layers import native_layers
from tests.cases import conv_bn


@st.composite
def cases(draw):
    """(layer, input), of every geometry that fits."""

    def pair(low, high):
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    groups = draw(st.sampled_from([1, 1, 2]))
    kernel, dilation, padding = pair(1, 3), pair(1, 2), pair(0, 2)
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, low) + extra for low, extra in zip(least, pair(0, 5), strict=True)]
    channels, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    layer = nn.Conv2d(channels, outputs, kernel, pair(1, 2), padding, dilation, groups, bias=draw(st.booleans()))
    return layer.double(), torch.randn(draw(st.integers(1, 3)), channels, *size, dtype=torch.float64)


def derivatives(layer, x, v_x, v_w):
    """y, the first derivatives of something nonlinear in it, and those of ⟨v, first derivatives⟩: all terms occur."""
    y = layer(x)
    first = torch.autograd.grad(y.sin().sum(), (x, layer.weight), create_graph=True)
    inner = (first[0] * v_x).sum() + (first[1] * v_w).sum()
    return y, *first, *torch.autograd.grad(inner, (x, layer.weight))


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from([(1, 1), (0, 1), (1, 0)]))
def test_both_derivatives_are_those_of_torch(case, parts):
    layer, x = case
    x.requires_grad_()
    v_x, v_w = parts[0] * torch.randn_like(x), parts[1] * torch.randn_like(layer.weight)
    expected = derivatives(layer, x, v_x, v_w)
    with native_layers(layer, {}):
        assert type(layer) is PlainConv2d
        found = derivatives(layer, x, v_x, v_w)
    assert type(layer) is nn.Conv2d
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_input_that_needs_no_derivative():
    layer, x = nn.Conv2d(2, 3, 3).double(), torch.randn(2, 2, 6, 6).double()

    def product():
        (slope,) = torch.autograd.grad(layer(x).square().sum(), layer.weight, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), layer.weight)[0]

    expected = product()
    with native_layers(layer, {}):
        torch.testing.assert_close(product(), expected)


@pytest.mark.parametrize("changes", [{"padding": "same"}, {"padding": 1, "padding_mode": "circular"}])
def test_what_has_no_cheap_way_goes_torchs(changes):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(2, 3, 3, **changes).double(), torch.randn(2, 2, 6, 6).double().requires_grad_()
    with native_layers(layer, {}):
        assert torch.autograd.gradgradcheck(layer, x)


def test_the_net_is_as_it_was_even_if_its_forward_pass_fails():
    net = Net(conv_bn())
    with pytest.raises(RuntimeError):
        net(net.weights, torch.zeros(1, 7, 5, 5))
    assert not any(isinstance(part, PlainConv2d) for part in net._skeleton.modules())


def test_third_derivatives_exist():
    torch.manual_seed(0)
    layer, x = nn.Conv2d(1, 2, 2, bias=False).double(), torch.randn(1, 1, 3, 3).double()

    def slope(weight):
        y = torch.func.functional_call(layer, {"weight": weight}, x)
        return torch.autograd.grad(y.exp().sum(), weight, create_graph=True)[0]

    with native_layers(layer, {}):
        assert torch.autograd.gradgradcheck(slope, layer.weight.detach().requires_grad_())


def test_hessian_products_of_a_net_are_the_same(monkeypatch):
    torch.manual_seed(0)
    net = Net(conv_bn().double())
    inputs = torch.randn(4, 2, 5, 5).double()
    masks = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}

    def product():
        leaves = net.leaves(net.weights, masks)
        output = net(leaves, inputs, norm="batch")
        slope = net.gradient(output.square().sum(), leaves, create_graph=True)
        return net.gradient(sum(value.square().sum() for value in slope.values()), leaves)

    found = product()
    monkeypatch.setattr("ntksap.net.layout.native_layers", lambda module, sparse: nullcontext())
    for name, value in product().items():
        torch.testing.assert_close(found[name], value)
