"""Thin networks: torch's 1×1 convolution with a stride and few input channels must not be met with channels last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ntksap.methods import METHODS
from ntksap.net.kernels import bears_channels_last, native_layers, safe_layers
from ntksap.net.kernels.geometry import Geometry, without_skips
from ntksap.net.layout import FIRST, LAST, Layout

PROGRAM = Path(__file__).with_name("thin_networks.py")


def surviving(threads: int, methods: str, widths: str) -> str:
    """What a process says in the end that prunes and trains thin networks, or that and why it died."""
    # Processors with AVX2 and nothing newer are the ones concerned; newer ones can be told to be like them.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, str(PROGRAM), str(threads), methods, widths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("threads", [1, 2])
def test_thin_networks_are_pruned_and_trained(threads):
    assert surviving(threads, "snip,ntk-sap,grasp", "2,4,7") == "3 networks\n"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_thin_networks_of_every_width_are_pruned_by_every_method_and_trained(threads):
    methods = ",".join(name for name, method in METHODS.items() if not method.trains)
    assert surviving(threads, methods, "1,2,3,4,5,6,7,8,9") == "9 networks\n"


@pytest.mark.parametrize("stride", [(2, 2), (1, 2), (3, 1)])
@pytest.mark.parametrize("settings", [{}, {"padding": "valid"}, {"groups": 2}, {"bias": False}])
def test_pixels_that_nobody_looks_at_are_left_out(stride, settings):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(4, 6, 1, stride, **settings).double(), torch.randn(3, 4, 7, 8).double()
    expected, single = layer(x), layer(x[0])
    with safe_layers(layer):
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer(x[0]), single)  # an image without a batch
        assert torch.autograd.gradgradcheck(layer, x[:2, :, :3, :3].requires_grad_())
        _, tangent = torch.func.jvp(layer, (x,), (x,))
        torch.testing.assert_close(tangent, expected if layer.bias is None else expected - layer.bias.view(-1, 1, 1))
    assert type(layer) is nn.Conv2d


@pytest.mark.parametrize(
    ("shape", "stride", "padding", "changed"),
    [
        ((4, 7, 1, 1), (2, 2), (0, 0), True),
        ((4, 7, 1, 1), (1, 2), (0, 0), True),
        ((4, 8, 1, 1), (2, 2), (0, 0), False),
        ((4, 7, 1, 1), (1, 1), (0, 0), False),
        ((4, 7, 1, 1), (2, 2), (1, 0), False),
        ((4, 7, 1, 3), (2, 2), (0, 0), False),
    ],
)
def test_only_what_is_not_safe_is_changed(shape, stride, padding, changed):
    x, how = torch.ones(2, shape[1], 8, 8), Geometry(stride, padding, (1, 1), 1)
    found, moves = without_skips(x, shape, how)
    assert (found is not x) == (moves != how) == changed


class Own(nn.Conv2d):
    """A convolution that calls torch's function itself, as many a library's does."""

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, 1, 1))

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight, stride=2)


@pytest.mark.parametrize(
    ("module", "bears"),
    [
        (nn.Conv2d(4, 6, 1, stride=2), True),
        (Own(4, 6, 1), True),
        (Own(8, 6, 1, stride=2), True),
        (nn.ConvTranspose2d(6, 8, 1, stride=2), True),
        (Own(4, 6, 1, stride=2), False),
        (Weights(), False),
        (nn.ConvTranspose2d(6, 4, 1, stride=2), False),
        (nn.Conv2d(4, 6, 1, stride=2, padding=1, padding_mode="circular"), False),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 1, stride=2)), False),
    ],
)
def test_code_that_nobody_here_knows_gets_channels_first(module, bears):
    module = nn.Sequential(nn.Conv2d(4, module.weight.shape[1], 1), module)
    assert bears_channels_last(module) == bears
    seen = []
    Layout(module, torch.device("cpu"), autocast=False).evaluate(seen.append, torch.ones(2, 4, 8, 8), None)
    assert seen == [LAST if bears else FIRST]


def test_layers_are_as_they_were_when_a_block_fails():
    layer = nn.Conv2d(4, 6, 1, stride=2)
    for block in (safe_layers(layer), native_layers(layer, {})):
        with pytest.raises(RuntimeError, match="channels"), block:
            layer(torch.ones(2, 5, 8, 8))
        assert type(layer) is nn.Conv2d
