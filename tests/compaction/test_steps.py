"""The steps of a signal through a module, on modules small enough to be followed by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import ntksap
from ntksap.compaction import ANYWHERE, read_steps


def layers(steps):
    return {step.kernels.weight: step.kernels for step in steps if step.kernels}


class Joined(nn.Module):
    """A sum of two layers' outputs, concatenated with those of a third."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(2, 3, 1) for _ in range(3))
        self.head = nn.Conv2d(6, 4, 3, groups=2)

    def forward(self, x):
        return {"logits": self.head(torch.cat([self.a(x) + self.b(x), self.c(x)], 1)), "other": x}


def test_sums_couple_channels_and_concatenations_line_them_up():
    steps = read_steps(Joined(), torch.zeros(1, 2, 5, 5))
    found = layers(steps)
    assert (found["a.weight"].inputs == ANYWHERE).all()  # an image's channels are nobody's outputs
    assert np.array_equal(found["a.weight"].outputs, found["b.weight"].outputs)
    assert len({*found["a.weight"].outputs.tolist(), *found["c.weight"].outputs.tolist()}) == 6
    joined = np.concatenate([found["a.weight"].outputs, found["c.weight"].outputs])
    head = found["head.weight"]
    assert head.groups == 2
    assert np.array_equal(head.inputs, joined)
    assert [number for number, step in enumerate(steps) if step.ends] == [len(steps) - 1]  # the logits alone


def test_features_of_a_channel_share_its_unit_and_a_transposed_layer_reads_the_other_way_round():
    model = nn.Sequential(nn.ConvTranspose2d(2, 4, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 5))
    found = layers(read_steps(model, torch.zeros(1, 2, 2, 2)))
    assert found["0.weight"].groups == 2
    assert (len(found["0.weight"].inputs), len(found["0.weight"].outputs)) == (2, 4)
    assert np.array_equal(found["3.weight"].inputs, np.repeat(found["0.weight"].outputs, 9))


def test_a_layer_that_is_used_twice_is_two_steps():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(self.layer(x).relu())

    steps = read_steps(Twice(), torch.zeros(1, 3))
    assert [step.kernels.weight for step in steps if step.kernels] == ["layer.weight"] * 2


def test_an_operator_without_a_rule_is_named():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.first(x).sort(-1).values)

    with pytest.raises(ntksap.InputError, match="there is no rule for sort"):
        read_steps(Sorted(), torch.zeros(1, 3))
