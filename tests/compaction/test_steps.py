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


class Moved(nn.Module):
    """Eight channels that something moves between two layers."""

    def __init__(self, move, width=8):
        super().__init__()
        self.first, self.last, self.move = nn.Conv2d(2, 8, 1), nn.Conv2d(width, 3, 1), move
        self.register_buffer("order", torch.tensor([3, 0, 2, 1, 7, 6, 5, 4]))
        self.position = nn.Parameter(torch.ones(1, 8, 4, 4))

    def forward(self, x):
        return self.last(self.move(self, self.first(x).relu()))


def shuffled(self, x):
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def blocked(self, x):
    """Space to channels and back, with a norm in between."""
    down = nn.functional.pixel_unshuffle(nn.functional.pixel_shuffle(x, 2), 2)
    return nn.functional.batch_norm(down, torch.zeros(8), torch.ones(8))


def by_heads(self, x):
    """Tokens in two heads, each half of which changes its place, as in rotary positions."""
    heads = x.flatten(2).transpose(1, 2).unflatten(2, (2, 4)).permute(0, 2, 1, 3)
    turned = torch.cat([-heads[..., 2:], heads[..., :2]], -1)
    return turned.transpose(1, 2).reshape(len(x), 16, 8).transpose(1, 2).unflatten(2, (4, 4))


MOVES = {
    "chunk": lambda self, x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "split": lambda self, x: torch.cat(x.split([1, 5, 2], 1)[::-1], 1),
    "slices": lambda self, x: torch.cat([x[:, 3:], x[:, :3]], 1),
    "steps": lambda self, x: torch.cat([x[:, ::2], x[:, 1::2]], 1),
    "narrow": lambda self, x: torch.cat([x.narrow(1, 2, 6), x.narrow(1, 0, 2)], 1),
    "one by one": lambda self, x: torch.stack([x[:, k] for k in (1, 0, 2, 3, 7, 6, 5, 4)], 1),
    "unbind": lambda self, x: torch.stack(x.unbind(1)[::-1], 1),
    "a list": lambda self, x: x[:, [3, 0, 2, 1, 7, 6, 5, 4]],
    "a buffer": lambda self, x: x.index_select(1, self.order),
    "roll and flip": lambda self, x: x.roll(3, 1).flip(1),
    "after positions": lambda self, x: torch.cat((x + self.position).chunk(2, 1)[::-1], 1),
    "with a parameter": lambda self, x: (
        torch.cat([self.position[:, :, :1].expand(len(x), -1, -1, -1), x], 2).chunk(2, 1)[1].repeat(1, 2, 1, 1)
    ),
    "views": shuffled,
    "pixels": blocked,
    "heads": by_heads,
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_channel_keeps_its_unit_wherever_it_is_moved(move):
    module = Moved(move).eval()
    found = layers(read_steps(module, torch.zeros(2, 2, 4, 4)))
    units = found["first.weight"].outputs
    assert len({*units.tolist()}) == 8
    numbers = torch.from_numpy(units).float().view(1, 8, 1, 1).expand(2, 8, 4, 4)
    with torch.no_grad():
        expected = move(module, numbers).abs()[0, :, -1, -1].round().long().numpy()
    if move is MOVES["after positions"]:
        expected -= 1
    assert np.array_equal(found["last.weight"].inputs, expected)


def test_a_step_that_only_moves_channels_says_so():
    steps = read_steps(
        Moved(lambda self, x: x.softmax(1)[:, 2:6].mean((2, 3), keepdim=True), 4), torch.zeros(2, 2, 4, 4)
    )
    assert [len(step.units) for step in steps if step.moves] == [4]
    assert [len(step.units) for step in steps if not step.moves] == [0, 8, 8, 8, 4, 3]


def test_what_is_summed_over_a_part_of_the_channels_is_coupled_and_no_more():
    found = layers(read_steps(Moved(lambda self, x: x.view(-1, 2, 4, 4, 4).sum(1), 4), torch.zeros(2, 2, 4, 4)))
    units = found["first.weight"].outputs.reshape(2, 4)
    assert np.array_equal(units[0], units[1])
    assert len({*units[0].tolist()}) == 4
    assert np.array_equal(found["last.weight"].inputs, units[0])


def test_a_layer_that_serves_every_head_couples_the_heads():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inside, self.last = nn.Linear(3, 8), nn.Linear(4, 5), nn.Linear(10, 2)

        def forward(self, x):
            return self.last(self.inside(self.first(x).view(-1, 2, 4)).flatten(1))

    found = layers(read_steps(Shared(), torch.zeros(2, 3)))
    units = found["first.weight"].outputs.reshape(2, 4)
    assert np.array_equal(units[0], units[1])
    assert np.array_equal(found["inside.weight"].inputs, units[0])
    assert np.array_equal(found["last.weight"].inputs, np.tile(found["inside.weight"].outputs, 2))


def test_outputs_of_a_depthwise_convolution_are_not_its_inputs():
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 6, 1, groups=3), nn.ConvTranspose2d(6, 6, 1, groups=6))
    found = layers(read_steps(model, torch.zeros(1, 2, 3, 3)))
    units = [*found["0.weight"].outputs, *found["1.weight"].outputs, *found["2.weight"].outputs]
    assert len({*map(int, units)}) == 3 + 6 + 6
    assert np.array_equal(found["1.weight"].inputs, found["0.weight"].outputs)


def test_an_operator_that_loses_channels_is_named_and_one_that_mixes_them_is_not():
    def gathered(self, x):
        return x.gather(1, x.long().clamp(0, 7))

    steps = read_steps(Moved(gathered), torch.zeros(2, 2, 4, 4))
    assert [step.loses for step in steps if step.loses] == ["gather in the module itself"]
    assert (layers(steps)["last.weight"].inputs == ANYWHERE).all()
    steps = read_steps(Moved(lambda self, x: x.mean(1, keepdim=True), 1), torch.zeros(2, 2, 4, 4))
    assert not any(step.loses for step in steps)


def test_a_weight_that_stands_on_the_right_has_its_inputs_first():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Linear(4, 5), nn.Parameter(torch.ones(5, 9))

        def forward(self, x):
            return self.inside(x) @ self.head

    found = layers(read_steps(Product(), torch.zeros(2, 4)))
    assert [found[name].inputs_first for name in ("inside.weight", "head")] == [False, True]
    assert (len(found["head"].inputs), len(found["head"].outputs)) == (5, 9)
