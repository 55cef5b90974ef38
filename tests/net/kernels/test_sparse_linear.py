"""Linear layers of kept weights against torch's dense ones."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from ntksap.net.kernels.compiler import library
from ntksap.net.kernels.sparse_linear import sparse_linear

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


def mask_of(kind, shape):
    if kind == "blocks":
        rows, columns = (-(-size // 4) for size in shape)
        return (torch.rand(rows, columns) < 0.3).repeat_interleave(4, 0).repeat_interleave(4, 1)[: shape[0], : shape[1]]
    return torch.rand(shape) < {"none": 0.0, "few": 0.1, "many": 0.5, "all": 1.0}[kind]


@st.composite
def cases(draw):
    """(x, weight, bias, mask, turned), of sizes about those of vectors and tiles."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    inputs, outputs = (draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 67, 130]))) for _ in range(2))
    turned = draw(st.booleans())
    shape = (inputs, outputs) if turned else (outputs, inputs)
    kept = mask_of(draw(st.sampled_from(["none", "few", "many", "all", "blocks"])), shape)
    weight = torch.randn(shape, dtype=torch.float64) * kept
    leading = draw(st.sampled_from([(), (1,), (2,), (9,), (33,), (65,), (140,), (3, 5), (2, 3, 11)]))
    x = torch.randn(*leading, inputs, dtype=torch.float64)
    bias = torch.randn(outputs, dtype=torch.float64) if draw(st.booleans()) else None
    return x, weight, bias, kept, turned


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 3))
def test_values_and_derivatives_are_those_of_the_dense_product(case, threads):
    x, weight, bias, kept, turned = case
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    expected = functional.linear(x, weight.t() if turned else weight, bias)
    g = torch.randn_like(expected)
    by_x, by_weight, *by_bias = torch.autograd.grad(expected, leaves, g)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        y = sparse_linear(x, weight, bias, kept, turned=turned)
        found = torch.autograd.grad(y, leaves, g)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(y, expected)
    for ours, theirs in zip(found, (by_x, by_weight * kept, *by_bias), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_number_of_threads_does_not_change_a_bit():
    torch.manual_seed(0)
    kept = torch.rand(70, 50) < 0.2
    x, weight = torch.randn(133, 50, requires_grad=True), (torch.randn(70, 50) * kept).requires_grad_()
    g, before, found = torch.randn(133, 70), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y = sparse_linear(x, weight, None, kept)
            found.append((y.detach(), *torch.autograd.grad(y, (x, weight), g)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_float32_is_as_exact_as_torch():
    torch.manual_seed(0)
    kept = torch.rand(300, 700) < 0.1
    x, weight = torch.randn(150, 700, requires_grad=True), (torch.randn(300, 700) * kept).requires_grad_()
    y = sparse_linear(x, weight, None, kept)
    g = torch.randn_like(y)
    found = (y.detach(), *torch.autograd.grad(y, (x, weight), g))
    exact_x, exact_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    exact = functional.linear(exact_x, exact_weight)
    by_x, by_weight = torch.autograd.grad(exact, (exact_x, exact_weight), g.double())
    for ours, theirs in zip(found, (exact.detach(), by_x, by_weight * kept), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-6


def test_inputs_and_weights_that_are_not_contiguous_do_as_well():
    torch.manual_seed(0)
    kept = (torch.rand(6, 5) < 0.4).t()
    x, weight = torch.randn(7, 5, 4).double().transpose(1, 2), torch.randn(6, 5).double().t() * kept
    x = x.transpose(0, 1)
    assert not x.is_contiguous()
    x, weight, kept = x, weight.t(), kept.t()
    torch.testing.assert_close(sparse_linear(x, weight, None, kept), functional.linear(x, weight))


def test_only_what_is_asked_for_is_differentiated():
    kept = torch.ones(3, 4, dtype=torch.bool)
    x, weight, bias = torch.randn(2, 4), torch.randn(3, 4), torch.randn(3)
    assert sparse_linear(x, weight, bias, kept).grad_fn is None
    sparse_linear(x, weight, bias.requires_grad_(), kept).sum().backward()
    assert bias.grad.tolist() == [2, 2, 2]
    y = sparse_linear(x.requires_grad_(), weight, bias, kept)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_mask_that_was_changed_in_place_is_seen():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    kept = torch.zeros(1, 1, dtype=torch.bool)
    assert sparse_linear(torch.ones(1, 1), layer.weight, None, kept).item() == 0
    kept.fill_(True)
    assert sparse_linear(torch.ones(1, 1), layer.weight, None, copy.copy(kept)).item() == 1
    assert sparse_linear(torch.ones(1, 1), layer.weight, None, kept).item() == 1


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="do not fit"):
        sparse_linear(torch.ones(2, 5), torch.ones(3, 4), None, torch.ones(3, 4, dtype=torch.bool))
