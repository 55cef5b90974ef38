"""The small networks of the lottery-ticket papers."""

from torch import nn


def lenet_300_100(channels: int, classes: int, size: int) -> nn.Module:
    """Two hidden layers of 300 and 100 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def lenet5(channels: int, classes: int, size: int) -> nn.Module:
    """Two 5×5 convolutions with max-pooling, three linear layers (the first convolution is padded)."""
    side = (size // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def conv4(channels: int, classes: int, size: int) -> nn.Module:
    """Four 3×3 convolutions in two stages with max-pooling, three linear layers."""
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * side * side, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )
