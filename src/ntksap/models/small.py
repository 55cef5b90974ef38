"""The small networks of the lottery-ticket papers; ``width`` is that of the first layer, others are in proportion."""

from torch import nn


def lenet_300_100(width: int, channels: int, classes: int, size: int) -> nn.Module:
    """Two hidden layers, of 300 and 100 units at their usual width, 300."""
    second = max(1, round(width / 3))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, width),
        nn.ReLU(),
        nn.Linear(width, second),
        nn.ReLU(),
        nn.Linear(second, classes),
    )


def lenet5(width: int, channels: int, classes: int, size: int) -> nn.Module:
    """Two 5×5 convolutions with max-pooling, three linear layers (the first convolution is padded); usual width 6."""
    side = (size // 2 - 4) // 2
    second, third, fourth = round(width * 16 / 6), 20 * width, 14 * width
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * side * side, third),
        nn.ReLU(),
        nn.Linear(third, fourth),
        nn.ReLU(),
        nn.Linear(fourth, classes),
    )


def conv4(width: int, channels: int, classes: int, size: int) -> nn.Module:
    """Four 3×3 convolutions in two stages with max-pooling, three linear layers; usual width 64."""
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * side * side, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, classes),
    )
