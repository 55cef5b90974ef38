"""PHEW against walks that are made one by one, in plain loops, from the same draws."""

import bisect
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import ntksap
from ntksap._base import generator_of
from ntksap.compaction import read_steps
from ntksap.methods.phew_walks import Layer, Walks

WALKS = 256  # in each direction from one table of draws


def chosen(weights, number):
    """The index that a number from [0, 1) falls on, in proportion to weights."""
    shares = list(itertools.accumulate(float(w) for w in weights))
    return min(bisect.bisect_right(shares, number * shares[-1]), len(shares) - 1)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 4)).double(), (7,)


def cnn():
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 6, 2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(24, 3)).double(), (2, 5, 5)  # 6 channels of 2 × 2


def walked(model, shape, kept):
    """The kernels that walks along a chain of layers meet first, until so many weights are kept, and what lacks."""
    sizes = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            sizes[name] = (
                parameter.detach().abs().flatten(2).sum(2) if parameter.dim() > 2 else parameter.detach().abs()
            )
    names, matrices = list(sizes), list(sizes.values())
    order: dict[tuple[str, int, int], int] = {}
    masks = {name: torch.zeros(matrix.shape, dtype=torch.bool) for name, matrix in sizes.items()}
    draws = 3 * len(read_steps(model, torch.zeros(1, *shape, dtype=torch.float64)))
    tables = [
        torch.rand(WALKS, draws, generator=generator_of(3, 1, "walks", 0, side), dtype=torch.float64) for side in (0, 1)
    ]
    for walk in range(2 * WALKS):
        numbers = iter(tables[walk % 2][walk // 2].tolist())
        unit = None  # of the layer to come, which may have several features for each channel of the one before
        chain = range(len(names)) if walk % 2 == 0 else reversed(range(len(names)))
        for index in chain:
            matrix = matrices[index] if walk % 2 == 0 else matrices[index].T  # (there, here)
            which, along = next(numbers), next(numbers)
            if unit is None:
                here = int(which * matrix.shape[1])
            else:
                here = unit[chosen([matrix[:, channel].sum() for channel in unit], which)]
            there = chosen(matrix[:, here], along)
            pair = (there, here) if walk % 2 == 0 else (here, there)
            order.setdefault((names[index], *pair), len(order))
            following = index + 1 if walk % 2 == 0 else index - 1
            if 0 <= following < len(names):
                width = matrices[following].shape[1] if walk % 2 == 0 else matrices[following].shape[0]
                repeated = width // matrix.shape[0] if walk % 2 == 0 else 1
                if walk % 2 == 1 and width < matrix.shape[0]:  # features back to their channel
                    there, repeated = there // (matrix.shape[0] // width), 1
                unit = range(there * repeated, (there + 1) * repeated)
    left = kept
    for name, output, source in order:
        size = dict(model.named_parameters())[name][output, source].numel()
        masks[name][output, source] = left > 0
        left -= size
    return masks, left


@pytest.mark.parametrize("make", [mlp, cnn])
def test_it_keeps_what_walks_in_plain_loops_meet_first(make):
    model, shape = make()
    total = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    for sparsity in (0.8, 0.5):
        masks = ntksap.prune(model, sparsity, "phew", input_shape=shape, seed=3)
        assert masks.kept == round((1 - sparsity) * total)
        kernels, left = walked(model, shape, masks.kept)
        assert left <= 0  # one table of draws was enough for the twin
        for name, mask in masks.items():
            got = mask.flatten(2).any(2) if mask.dim() > 2 else mask
            assert torch.equal(got, kernels[name]), name
        whole = [mask.flatten(2).sum(2) for mask in masks.values() if mask.dim() > 2]
        cut = [k for kernel in whole for k in kernel.flatten().tolist() if 0 < k < int(kernel.max())]
        assert len(cut) <= 1  # the last one


class Shortcut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inside, self.head = (nn.Linear(*sizes, bias=False) for sizes in ((3, 4), (4, 4), (4, 2)))

    def forward(self, x):
        y = self.first(x)
        return self.head(y + torch.relu(self.inside(y)))


def test_where_ways_part_each_counts_as_much_as_its_weights_and_a_shortcut_as_one():
    torch.manual_seed(0)
    model = Shortcut().double()
    steps = read_steps(model, torch.zeros(1, 3, dtype=torch.float64))
    named = {number: step.kernels for number, step in enumerate(steps) if step.kernels}
    sizes = {k.weight: dict(model.named_parameters())[k.weight].detach().abs().numpy() for k in named.values()}
    walks = Walks(steps, {number: Layer(k, sizes[k.weight]) for number, k in named.items()})
    uniform = np.random.default_rng(0).random((4000, walks.draws))
    for forward in (True, False):
        unit_at, took = {}, np.zeros(4000, bool)
        for number, who, taken in walks.walk(uniform, forward=forward):
            output, source = np.divmod(taken, sizes[named[number].weight].shape[1])
            if named[number].weight == ("first.weight" if forward else "head.weight"):
                unit_at = dict(zip(who.tolist(), (output if forward else source).tolist(), strict=True))
            if named[number].weight == "inside.weight":
                took[who] = True
                here = source if forward else output
                assert all(unit_at[w] == unit for w, unit in zip(who.tolist(), here.tolist(), strict=True))
        strength = sizes["inside.weight"].sum(0 if forward else 1)
        units = np.array([unit_at[w] for w in range(4000)])
        for unit in range(4):
            # forward, the other way leads past all layers to the sum; backward, straight into the first layer
            other = 1.0 if forward else sizes["first.weight"][unit].sum()
            share = strength[unit] / (strength[unit] + other)
            assert took[units == unit].mean() == pytest.approx(share, abs=0.06)


def test_every_kept_weight_of_a_real_network_lies_on_a_path():
    model = ntksap.models.build("resnet8", input_shape=(3, 16, 16))
    masks = ntksap.prune(model, 0.97, "phew", input_shape=(3, 16, 16))
    used = ntksap.diagnose(model, masks, input_shape=(3, 16, 16))
    assert sum(layer.used for layer in used.layers) >= masks.kept - 9  # the last kernel may be cut from its walk


def test_an_allocation_is_filled_by_walks():
    model, shape = mlp()
    plan = ntksap.allocate(model, 0.6, "erk")
    masks = ntksap.prune(model, 0.6, "phew", allocation=plan, input_shape=shape)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == dict(plan)


def test_what_it_cannot_walk_it_names():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(x @ self.inside.weight.sin().T)

    with pytest.raises(ntksap.InputError, match=r"inside\.weight is not the weight of a convolution or linear"):
        ntksap.prune(Turned(), 0.5, "phew", input_shape=(3,))

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(3, 4)

        def forward(self, x):
            return self.inside(x) if x.sum() > 0 else -self.inside(x)

    with pytest.raises(ntksap.InputError, match="phew walks along the module's graph, which cannot be read"):
        ntksap.prune(Branching(), 0.5, "phew", input_shape=(3,))


def test_walks_stay_within_the_groups_of_a_convolution():
    torch.manual_seed(0)
    layers = nn.Conv2d(4, 8, 3, groups=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3, groups=4)
    model = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(8 * 9, 3))
    masks = ntksap.prune(model, 0.8, "phew", input_shape=(4, 5, 5))
    used = ntksap.diagnose(model, masks, input_shape=(4, 5, 5))
    assert sum(layer.used for layer in used.layers) >= masks.kept - 9
