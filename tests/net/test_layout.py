"""Where the channels stand while a module is evaluated, and what happens to errors meanwhile."""

import pytest
import torch
from torch import nn

from ntksap import Net


class Watched(nn.Module):
    """A convolution, and then something that sees the layout; counts how often it was called."""

    def __init__(self, then) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.then = then
        self.calls = torch.zeros(0)
        self.seen: list[bool] = []

    def forward(self, x):
        y = self.conv(x)
        self.seen.append(y.is_contiguous(memory_format=torch.channels_last))
        return self.then(y)


def watched(then):
    """Whole numbers only, of which every kernel gives the same bits."""
    module = Watched(then)
    for parameter in module.parameters():
        parameter.data = (8 * parameter.data).round()
    net = Net(module)
    return net, net._skeleton.seen, (4 * torch.randn(2, 3, 6, 6)).round()


def test_images_come_with_channels_last_unless_there_is_only_one():
    net, seen, x = watched(lambda y: y.mean((2, 3)))
    net(net.weights, x)
    net(net.weights, x[:1])
    assert seen == [True, False]


@pytest.mark.parametrize(
    "then",
    [
        lambda y: y.view(2, -1),
        lambda y: torch.view_as_complex(y.unflatten(-1, (-1, 2))).abs().flatten(1),
        lambda y: y.view(torch.int16).float().flatten(1),
    ],
    ids=["view", "view as complex", "view as another type"],
)
def test_a_module_that_views_its_channels_first_gets_them_first_from_then_on(then):
    net, seen, x = watched(then)
    expected = then(nn.functional.conv2d(x, net.weights["conv.weight"], net.weights["conv.bias"], padding=1))
    for _ in range(2):
        torch.testing.assert_close(net(net.weights, x), expected)
    assert seen == [True, False, False]


@pytest.mark.parametrize(
    "then",
    [
        lambda y: y.flatten(1) @ torch.ones(7, 2),
        lambda y: y.reshape(5, -1),
        lambda y: torch.ones(10**14, device="cpu"),
    ],
    ids=["matrices", "shape", "memory"],
)
def test_a_modules_own_error_is_raised_at_once(then):
    net, seen, x = watched(then)
    with pytest.raises(RuntimeError):
        net(net.weights, x)
    assert len(seen) == 1


def test_noise_is_the_same_in_the_second_attempt():
    noisy = watched(lambda y: (y + torch.randn(y.shape)).view(2, -1))
    net, seen, x = noisy
    first = net(net.weights, x)  # with channels last first, then again
    torch.testing.assert_close(net(net.weights, x), first)
    assert seen == [True, False, False]
