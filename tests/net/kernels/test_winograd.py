"""Dense 3×3 convolutions of a quarter of the multiplications against torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ntksap
from ntksap.net.kernels import winograd
from ntksap.net.kernels.compiler import library
from ntksap.net.kernels.geometry import Geometry
from ntksap.net.kernels.layers import native_layers

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")

LAST = torch.channels_last


@st.composite
def cases(draw):
    """(input, weight, padding), of every size that the kernels take."""
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    size = [draw(st.integers(max(1, 3 - 2 * pad), 13)) for pad in padding]
    channels, outputs = (draw(st.integers(1, 80)) for _ in range(2))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn(draw(st.integers(1, 9)), channels, *size, dtype=torch.float64)
    weight = torch.randn(outputs, channels, 3, 3, dtype=torch.float64)
    return x, weight.contiguous(memory_format=draw(st.sampled_from([LAST, torch.contiguous_format]))), padding


def expected(x, weight, padding):
    """The result, a derivative with respect to it, and those of x and the weight that follow, from torch in float64."""
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = nn.functional.conv2d(x, weight, padding=padding)
    g = torch.randn_like(y)
    return y.detach(), g, *torch.autograd.grad(y, (x, weight), g)


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 3))
def test_values_and_derivatives_are_those_of_torch(case, threads):
    x, weight, padding = case
    y, g, by_x, by_weight = expected(*case)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        torch.testing.assert_close(winograd.conv(x, weight, padding), y, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(winograd.back(g, weight, padding), by_x, rtol=1e-8, atol=1e-9)
        found = winograd.by_weight(x, g, weight, padding)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, by_weight, rtol=1e-8, atol=1e-9)
    assert found.stride() == weight.stride()


def test_the_number_of_threads_does_not_change_a_bit():
    torch.manual_seed(0)
    x, weight = torch.randn(7, 27, 9, 9).to(memory_format=LAST), torch.randn(43, 27, 3, 3)
    g, before, found = torch.randn(7, 43, 9, 9), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append((winograd.conv(x, weight, (1, 1)), winograd.by_weight(x, g, weight, (1, 1))))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, three) for one, three in zip(*found, strict=True))


def test_float32_is_nearly_as_exact_as_torch():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 64, 16, 16), torch.randn(64, 64, 3, 3)
    y, g, by_x, by_weight = expected(x, weight, (1, 1))
    found = (
        winograd.conv(x, weight, (1, 1)),
        winograd.back(g.float(), weight, (1, 1)),
        winograd.by_weight(x, g.float(), weight, (1, 1)),
    )
    for ours, theirs in zip(found, (y, by_x, by_weight), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 5e-6  # torch: 4e-7 to 1e-6


@pytest.mark.parametrize(
    ("layer", "size", "taken"),
    [
        (nn.Conv2d(16, 32, 3, padding=1), (8, 8), True),
        (nn.Conv2d(16, 32, 3, padding=1), (2, 2), False),  # three quarters of a tile would be empty
        (nn.Conv2d(16, 32, 3, padding=1, stride=2), (8, 8), False),
        (nn.Conv2d(16, 32, 3, padding=1, dilation=2), (8, 8), False),
        (nn.Conv2d(16, 32, 3, padding=1, groups=2), (8, 8), False),
        (nn.Conv2d(16, 32, 3, padding=3), (8, 8), False),
        (nn.Conv2d(16, 32, 5, padding=2), (8, 8), False),
        (nn.Conv2d(16, 11, 3, padding=1), (8, 8), True),
        (nn.Conv2d(16, 8, 3, padding=1), (8, 8), False),  # half of a vector would be empty
        (nn.Conv2d(16, 32, 3, padding=1).bfloat16(), (8, 8), False),
    ],
)
def test_what_is_taken(layer, size, taken):
    x = torch.ones(4, 16, *size, dtype=layer.weight.dtype).to(memory_format=LAST)
    how = Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)
    assert winograd.faster(x, layer.weight, how) == taken
    assert not winograd.faster(x.contiguous(), layer.weight, how)
    assert not winograd.faster(x[:2], layer.weight, how)  # too few tiles to pay for the weights


def test_images_that_do_not_fit_the_weights_are_refused():
    layer = nn.Conv2d(16, 32, 3, padding=1)
    with native_layers(layer, {}), pytest.raises(RuntimeError, match="32 channels"):
        layer(torch.ones(4, 32, 8, 8).to(memory_format=LAST))


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_its_second_derivatives(bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=bias).double()
    x = torch.randn(2, 16, 6, 6, dtype=torch.float64).to(memory_format=LAST).requires_grad_()

    def derivatives():
        y = layer(x)
        first = torch.autograd.grad(y.sin().sum(), (x, layer.weight), create_graph=True)
        return y, *first, *torch.autograd.grad(sum(one.square().sum() for one in first), (x, layer.weight))

    theirs = derivatives()
    with native_layers(layer, {}):
        assert "_ConvBackward" in repr(layer(x).grad_fn if not bias else layer(x).grad_fn.next_functions)
        ours = derivatives()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_operations_are_counted_as_if_torch_did_the_work():
    net = ntksap.Net(nn.Conv2d(16, 16, 3, padding=1, bias=False))
    with FlopCounterMode(display=False) as counter:
        net(net.weights, torch.ones(2, 16, 8, 8))
    assert counter.get_total_flops() == 2 * 2 * 16 * 16 * 9 * 8 * 8
