"""Convolutions with cheap second derivatives against torch's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cases import conv_bn
from ntksap import Net
from ntksap.convolution import TwiceConv2d, cheap_second_derivatives


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
    with cheap_second_derivatives(layer):
        assert type(layer) is TwiceConv2d
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
    with cheap_second_derivatives(layer):
        torch.testing.assert_close(product(), expected)


@pytest.mark.parametrize("changes", [{"padding": "same"}, {"padding": 1, "padding_mode": "circular"}])
def test_what_has_no_cheap_way_goes_torchs(changes):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(2, 3, 3, **changes).double(), torch.randn(2, 2, 6, 6).double().requires_grad_()
    with cheap_second_derivatives(layer):
        assert torch.autograd.gradgradcheck(layer, x)


def test_the_net_is_as_it_was_even_if_its_forward_pass_fails():
    net = Net(conv_bn())
    with pytest.raises(RuntimeError):
        net(net.weights, torch.zeros(1, 7, 5, 5), twice=True)
    assert not any(isinstance(part, TwiceConv2d) for part in net._skeleton.modules())


def test_hessian_products_of_a_net_are_the_same():
    torch.manual_seed(0)
    net = Net(conv_bn().double())
    inputs = torch.randn(4, 2, 5, 5).double()
    masks = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}

    def product(twice):
        leaves = net.leaves(net.weights, masks)
        output = net(leaves, inputs, norm="batch", twice=twice)
        slope = net.gradient(output.square().sum(), leaves, create_graph=True)
        return net.gradient(sum(value.square().sum() for value in slope.values()), leaves)

    expected = product(False)
    for name, value in product(True).items():
        torch.testing.assert_close(value, expected[name])
