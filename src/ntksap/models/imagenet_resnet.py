"""Residual networks for large images, with torchvision's architecture and state-dict keys."""

from collections.abc import Sequence

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inside: int, channels: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) → (N, channels, H/stride, W/stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + shortcut
        out: Tensor = self.relu(y)
        return out


class Bottleneck(nn.Module):
    """1×1, 3×3 (which carries the stride) and 1×1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, inside: int, channels: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) → (N, 4·channels, H/stride, W/stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y)) + shortcut
        out: Tensor = self.relu(y)
        return out


class ImageNetResNet(nn.Module):
    """A 7×7 stem of stride 2, max-pooling, four stages, average pooling; any input size and number of classes."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        layers: Sequence[int],
        *,
        width: int = 64,
        in_channels: int = 3,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.inside = width
        self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(block, width, layers[0], stride=1)
        self.layer2 = self._stage(block, 2 * width, layers[1], stride=2)
        self.layer3 = self._stage(block, 4 * width, layers[2], stride=2)
        self.layer4 = self._stage(block, 8 * width, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width * block.expansion, num_classes)

    def _stage(self, block: type[BasicBlock | Bottleneck], channels: int, count: int, stride: int) -> nn.Sequential:
        outside = channels * block.expansion
        downsample = None
        if stride != 1 or self.inside != outside:
            downsample = nn.Sequential(nn.Conv2d(self.inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        blocks = [block(self.inside, channels, stride, downsample)]
        self.inside = outside
        blocks += [block(outside, channels, 1, None) for _ in range(count - 1)]
        return nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → logits (N, classes)."""
        y = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        logits: Tensor = self.fc(self.avgpool(y).flatten(1))
        return logits
