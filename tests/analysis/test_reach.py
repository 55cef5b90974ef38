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


@pytest.mark.parametrize("guard", [lambda x: x.clamp(min=1e-6), lambda x: x.clamp_min(1e-6), lambda x: x.clip(1e-6, 6)])
def test_a_lower_bound_still_guards_a_division(guard):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, 3, bias=False)

        def forward(self, x):
            x = functional.relu(self.first(x))
            return self.second(x / guard(x.mean((2, 3), keepdim=True)))

    generator = torch.Generator().manual_seed(0)
    module = Scaled()
    masks = Masks({name: torch.rand(p.shape, generator=generator) < 0.05 for name, p in module.named_parameters()})
    dead = ~masks["first.weight"].flatten(1).any(1)
    assert dead.any()
    found = effective_masks(module, masks, input_shape=(3, 8, 8))
    assert not found["second.weight"][:, dead].any()
    assert 0 < found.kept < masks.kept
