"""Which weights lie on a path, where activations cut off large signals."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ntksap import Masks
from ntksap.analysis.reach import effective_masks


class Block(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.wide = nn.Conv2d(4, 16, 1, bias=False)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.narrow = nn.Conv2d(16, 4, 1, bias=False)
        self.activation = activation

    def forward(self, x):
        return self.narrow(self.activation(self.deep(self.activation(100 * self.wide(x)))))


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU6(), nn.ReLU6(inplace=True), nn.Hardsigmoid(), functional.relu6, lambda x: x.clamp(0, 6)],
    ids=["ReLU6", "ReLU6 in place", "Hardsigmoid", "function", "clamp"],
)
def test_a_bound_on_signals_hides_no_path(activation):
    generator = torch.Generator().manual_seed(0)
    masks = Masks(
        {name: torch.rand(p.shape, generator=generator) < 0.4 for name, p in Block(nn.ReLU()).named_parameters()}
    )
    expected = effective_masks(Block(nn.ReLU()), masks, input_shape=(4, 6, 6))
    found = effective_masks(Block(activation), masks, input_shape=(4, 6, 6))
    assert 0 < expected.kept < masks.kept
    assert found == expected
