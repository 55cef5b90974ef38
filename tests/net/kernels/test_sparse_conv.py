"""Convolutions of kept weights against torch's dense ones."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ntksap.net.kernels.compiler import library
from ntksap.net.kernels.sparse_conv import by_kept_weights, conv2d, sparse_conv2d, suits

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


def how(layer):
    return layer.stride, layer.padding, layer.dilation, layer.groups


@st.composite
def cases(draw):
    """(layer, input, mask), of every geometry that fits."""

    def pair(low, high):
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel, dilation, padding = pair(1, 4), pair(1, 2), pair(0, 3)
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, low) + extra for low, extra in zip(least, pair(0, 11), strict=True)]
    channels, outputs = groups * draw(st.integers(1, 4)), groups * draw(st.integers(1, 4))
    torch.manual_seed(draw(st.integers(0, 2**20)))
    layer = nn.Conv2d(channels, outputs, kernel, pair(1, 3), padding, dilation, groups, bias=False).double()
    kept = torch.rand(layer.weight.shape) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    layer.weight.data.mul_(kept)
    return layer, torch.randn(draw(st.integers(1, 12)), channels, *size, dtype=torch.float64), kept


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(1, 3))
def test_values_and_derivatives_are_those_of_the_dense_convolution(case, threads):
    layer, x, kept = case
    x.requires_grad_()
    expected = layer(x)
    g = torch.randn_like(expected)
    dense = torch.autograd.grad(expected, (x, layer.weight), g)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        y = sparse_conv2d(x, layer.weight, kept, *how(layer))
        by_x, by_weight = torch.autograd.grad(y, (x, layer.weight), g)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(by_x, dense[0])
    torch.testing.assert_close(by_weight, dense[1] * kept)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_rows_of_a_jacobian_by_kept_weights(case):
    layer, x, kept = case
    x = x[:1]
    y = layer(x)
    g = torch.randn(3, *y.shape[1:], dtype=torch.float64)
    found = by_kept_weights(x, g, kept, *how(layer))
    if found is None:  # too many are kept for this geometry
        return
    for row, one in zip(found, g, strict=True):
        (whole,) = torch.autograd.grad(y, layer.weight, one[None], retain_graph=True)
        torch.testing.assert_close(row, whole[kept])


@pytest.mark.parametrize("stride", [1, 2])
def test_float32_is_as_exact_as_torch(stride):
    torch.manual_seed(0)
    layer = nn.Conv2d(32, 16, 3, stride, 1, bias=False)
    kept = torch.rand(layer.weight.shape) < 0.2
    layer.weight.data.mul_(kept)
    x = torch.randn(9, 32, 16, 16, requires_grad=True)
    y = sparse_conv2d(x, layer.weight, kept, *how(layer))
    g = torch.randn_like(y)
    found = (y.detach(), *torch.autograd.grad(y, (x, layer.weight), g))
    exact_layer, exact_x = nn.Conv2d(32, 16, 3, stride, 1, bias=False).double(), x.detach().double().requires_grad_()
    exact_layer.weight.data.copy_(layer.weight.data)
    exact = exact_layer(exact_x)
    by_x, by_weight = torch.autograd.grad(exact, (exact_x, exact_layer.weight), g.double())
    for ours, theirs in zip(found, (exact.detach(), by_x, by_weight * kept), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-6


def test_a_channels_last_input_and_weight_do_as_well():
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 3, padding=1, bias=False).double()
    kept = torch.rand(layer.weight.shape) < 0.3
    layer.weight.data.mul_(kept)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    y = sparse_conv2d(x, layer.weight, kept, *how(layer))
    layer.to(memory_format=torch.channels_last)
    other = sparse_conv2d(x.to(memory_format=torch.channels_last), layer.weight, kept, *how(layer))
    torch.testing.assert_close(other, y)
    other.sum().backward()
    assert layer.weight.grad.stride() == layer.weight.stride()


LAYOUTS = {
    "channels last": lambda w: w.contiguous(memory_format=torch.channels_last),
    "turned": lambda w: w.transpose(0, 1).contiguous().transpose(0, 1),
    "every second of a larger tensor": lambda w: torch.stack((w, torch.full_like(w, torch.nan)), -1)[..., 0],
    "the same for all outputs": lambda w: w[:1].expand_as(w),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_read_and_their_derivative_is_written_in_any_layout(layout):
    torch.manual_seed(0)
    x, kept = torch.randn(3, 4, 6, 8, dtype=torch.float64), torch.rand(6, 4, 3, 2) < 0.4
    kept = kept[:1].expand_as(kept).contiguous() if "all outputs" in layout else kept
    weight = LAYOUTS[layout](torch.randn(6, 4, 3, 2, dtype=torch.float64) * kept).requires_grad_()
    dense, y = torch.nn.functional.conv2d(x, weight, padding=1), sparse_conv2d(x, weight, kept, 1, 1)
    g = torch.randn_like(dense)
    (expected,), (found,) = torch.autograd.grad(dense, weight, g), torch.autograd.grad(y, weight, g)
    torch.testing.assert_close(y, dense)
    torch.testing.assert_close(found, expected * kept)
    assert found.stride() == torch.empty_like(weight).stride()


def test_a_mask_that_was_changed_in_place_is_seen():
    layer = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(layer.weight)
    kept = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    assert sparse_conv2d(torch.ones(1, 1, 1, 1), layer.weight, kept).item() == 0
    kept.fill_(True)
    assert sparse_conv2d(torch.ones(1, 1, 1, 1), layer.weight, kept).item() == 1


@pytest.mark.parametrize("size", [(3, 8, 8), (4, 2, 8)])
def test_images_that_do_not_fit_are_refused(size):
    layer = nn.Conv2d(4, 4, 3, bias=False)
    with pytest.raises(RuntimeError, match="do not fit"):
        sparse_conv2d(torch.ones(1, *size), layer.weight, torch.ones(4, 4, 3, 3, dtype=torch.bool), *how(layer))


def test_only_plain_zero_padded_convolutions_are_taken():
    class Own(nn.Conv2d):
        pass

    assert suits(nn.Conv2d(4, 4, 3, padding=1))
    assert not suits(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"))
    assert not suits(nn.Conv2d(4, 4, 3, padding="same"))
    assert not suits(nn.Conv2d(4, 4, 3).bfloat16())
    assert not suits(Own(4, 4, 3))


@pytest.mark.parametrize("setting", [{"NTKSAP_NATIVE": "0"}, {"CC": "no-such-compiler"}, {"CC": "false"}])
def test_without_the_kernels_torch_does_the_work(setting, tmp_path):
    script = (
        "import ntksap, torch; from ntksap.net.kernels.compiler import library; assert library() is None;"
        "model = ntksap.models.build('conv-4', input_shape=(3, 8, 8), seed=0);"
        "print(ntksap.prune(model, 0.9, 'synflow', input_shape=(3, 8, 8), rounds=3).sha256)"
    )
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **setting}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 64


def test_a_compiler_without_openmp_makes_kernels_of_one_thread(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    script = (
        "import torch; from ntksap.net.kernels import compiler, winograd, sparse_conv;"
        "torch.set_num_threads(2); assert compiler.library() is not None;"
        "x, w = torch.randn(4, 16, 8, 8).double(), torch.randn(16, 16, 3, 3).double(); kept = w > 1; w *= kept;"
        "w.requires_grad_(); y = torch.nn.functional.conv2d(x, w, padding=1);"
        "torch.testing.assert_close(winograd.conv(x, w.detach(), (1, 1)), y.detach());"
        "(g,) = torch.autograd.grad(y.square().sum(), w);"
        "(ours,) = torch.autograd.grad(sparse_conv.sparse_conv2d(x, w, kept, 1, 1).square().sum(), w);"
        "torch.testing.assert_close(ours, g * kept)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": str(compiler)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_dense_mask_leaves_channels_first_whatever_the_layout_of_weights():
    weight = torch.randn(16, 16, 3, 3).contiguous(memory_format=torch.channels_last)
    kept = torch.ones(weight.shape, dtype=torch.bool)
    assert conv2d(torch.randn(4, 16, 16, 16), weight, kept, stride=2, padding=1).is_contiguous()
