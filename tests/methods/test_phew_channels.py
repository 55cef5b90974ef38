"""PHEW where channels are cut, moved and put together again: what it keeps lies on paths however that is written."""

import warnings

import pytest
import torch
from torch import nn

import ntksap
from ntksap import ApproximationWarning, ScoreError


class Parts(nn.Module):
    """Two parts of a layer's channels, one of which two layers refine, as in YOLO."""

    def __init__(self, width=16):
        super().__init__()
        half = width // 2
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.inner, self.deeper = (nn.Conv2d(half, half, 3, padding=1) for _ in range(2))
        self.out, self.head = nn.Conv2d(2 * width, width, 1), nn.Linear(width, 10)

    def halves(self, x):
        return self.first(x).relu().chunk(2, 1)

    def forward(self, x):
        parts = list(self.halves(x))
        for layer in (self.inner, self.deeper):
            parts.append(layer(parts[-1]).relu())
        return self.head(self.out(torch.cat(parts, 1)).mean((2, 3)))


class Slices(Parts):
    def halves(self, x):
        x = self.first(x).relu()
        return x[:, :8], x[:, 8:]


class Numbers(Parts):
    def halves(self, x):
        x = self.first(x).relu()
        return [torch.stack([x[:, k] for k in half], 1) for half in (range(8), range(8, 16))]


class TwoLayers(Parts):
    """The same function, whose halves come from a layer each."""

    def __init__(self, width=16):
        super().__init__(width)
        self.first = nn.ModuleList([nn.Conv2d(3, width // 2, 3, padding=1) for _ in range(2)])

    def halves(self, x):
        return [layer(x).relu() for layer in self.first]


class Unread(nn.Module):
    """Half of a layer's channels are read by nobody, as the variances of an encoder whose means are all it returns."""

    def __init__(self, width=16):
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width // 2, width, 3, padding=1)
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        x = self.inner(self.first(x).relu()[:, ::2]).relu()
        return self.head(x.mean((2, 3))).chunk(2, 1)[0]


class Shuffles(nn.Module):
    """Two units of ShuffleNetV2, whose shuffle is a view, a transposition and a view."""

    def __init__(self, width=32):
        super().__init__()
        half = width // 2
        self.first, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 4)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(half, half, 1), nn.ReLU(), nn.Conv2d(half, half, 3, padding=1, groups=half),
                nn.Conv2d(half, half, 1), nn.ReLU(),
            ) for _ in range(2)
        )  # fmt: skip

    def forward(self, x):
        x = self.first(x)
        for branch in self.branches:
            left, right = x.chunk(2, 1)
            x = torch.cat([left, branch(right)], 1)
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(x.mean((2, 3)))


class GroupShuffle(nn.Module):
    def __init__(self, width=32, groups=4):
        super().__init__()
        self.first, self.head, self.groups = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 4), groups
        self.inner, self.last = (nn.Conv2d(width, width, 1, groups=groups) for _ in range(2))

    def forward(self, x):
        x = self.inner(self.first(x).relu())
        x = x.view(len(x), self.groups, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        return self.head(self.last(x).mean((2, 3)))


@pytest.mark.parametrize("make", [TwoLayers, Parts, Slices, Numbers, Unread, Shuffles, GroupShuffle])
@pytest.mark.parametrize("sparsity", [0.9, 0.95])
def test_however_channels_are_moved_what_is_kept_lies_on_paths(make, sparsity):
    kept = used = 0
    for seed in range(3):
        torch.manual_seed(seed)
        model = make()
        with warnings.catch_warnings():
            warnings.simplefilter("error", ApproximationWarning)
            masks = ntksap.prune(model, sparsity, "phew", input_shape=(3, 6, 6), seed=seed)
        found = ntksap.diagnose(model, masks, input_shape=(3, 6, 6))
        kept, used = kept + masks.kept, used + sum(layer.used for layer in found.layers)
    assert used >= 0.85 * kept  # the last walk of each is cut, and has kernels of 9 weights


def test_where_channels_are_lost_a_warning_names_the_operator():
    class Gathered(Parts):
        def halves(self, x):
            x = self.first(x).relu()
            return x.gather(1, x.long().clamp(0, 7)).chunk(2, 1)

    with pytest.warns(ApproximationWarning, match="cannot follow channels through gather in the module itself"):
        ntksap.prune(Gathered(), 0.5, "phew", input_shape=(3, 6, 6))


class Projected(nn.Module):
    """A projection whose weight is a bare parameter (inputs, outputs), as in CLIP."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inside, self.head = nn.Linear(4, inputs), nn.Linear(outputs, 3)
        self.project = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x):
        return self.head(self.inside(x) @ self.project)


def test_a_projection_with_its_inputs_first_is_walked_from_its_inputs():
    torch.manual_seed(0)
    model = Projected(5, 9)
    masks = ntksap.prune(model, 0.8, "phew", include=["default", "project"], input_shape=(4,))
    found = ntksap.diagnose(model, masks, input_shape=(4,))
    assert sum(layer.used for layer in found.layers) >= masks.kept - 3

    model = Projected(7, 7)
    with torch.no_grad():  # unit j goes to unit j + 1
        model.project.copy_(torch.roll(torch.eye(7), 1, 1) * 100 + 1e-6)
    masks = ntksap.prune(model, 0.8, "phew", exclude="project", input_shape=(4,))
    reached, read = masks["inside.weight"].any(1).roll(1), masks["head.weight"].any(0)
    assert 2 <= int(read.sum()) <= 5
    assert int((reached != read).sum()) <= 1  # the last walk is cut


def test_a_weight_may_be_read_both_ways():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.code = nn.Parameter(torch.randn(9, 4))

        def forward(self, x):
            return nn.functional.linear(x @ self.code, self.code)

    torch.manual_seed(0)
    model = Autoencoder()
    with torch.no_grad():
        model.code.mul_(0.001)
        model.code[torch.arange(9), torch.arange(9) % 4] = 10.0
    masks = ntksap.prune(model, 0.75, "phew", include="code", input_shape=(9,))
    assert torch.equal(masks["code"], model.code == 10.0)


def test_weights_that_are_nan_are_an_error_that_names_the_layer():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[2].weight[0] = torch.nan
    for method in ("magnitude", "phew"):
        with pytest.raises(ScoreError, match=r"'2\.weight' of the model holds NaN"):
            ntksap.prune(model, 0.5, method, input_shape=(4,))
