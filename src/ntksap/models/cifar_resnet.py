"""Residual networks for small images (He et al., 2016, section 4.2)."""

from torch import Tensor, nn

from ntksap._base import InputError


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) → (N, outside, H/stride, W/stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))
        return out


class CifarResNet(nn.Module):
    """ResNet of depth 6n + 2: three stages of n blocks with ``width``, 2·width and 4·width channels.

    The published pruning experiments use 1×1 convolutions with BatchNorm as the two shortcuts that change shape.
    """

    def __init__(self, depth: int, *, width: int = 16, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InputError(f"the depth of a CIFAR ResNet is 6n + 2 (8, 14, 20, 32, 44, 56, 110 …), not {depth}")
        self.conv = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        blocks: list[nn.Module] = []
        inside = width
        for stage, channels in enumerate((width, 2 * width, 4 * width)):
            for index in range((depth - 2) // 6):
                blocks.append(Block(inside, channels, stride=2 if stage > 0 and index == 0 else 1))
                inside = channels
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inside, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → logits (N, classes)."""
        y = self.blocks(self.relu(self.bn(self.conv(x))))
        logits: Tensor = self.fc(self.pool(y).flatten(1))
        return logits
