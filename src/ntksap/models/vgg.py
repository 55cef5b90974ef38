"""VGG for small images, with BatchNorm (Simonyan and Zisserman, 2015)."""

from torch import Tensor, nn

from ntksap._base import InputError

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(nn.Module):
    """Five stages of 3×3 convolutions (with biases, as in the published experiments), average pooling, a linear layer.

    Stages have ``width`` channels, then 2, 4, 8 and 8 times as many, and are separated by four max-pooling layers, so
    a 32×32 image ends as 2×2 before the average.
    """

    def __init__(self, depth: int, *, width: int = 64, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        if depth not in _CONVOLUTIONS:
            raise InputError(f"the depth of a VGG is one of {', '.join(map(str, _CONVOLUTIONS))}, not {depth}")
        features: list[nn.Module] = []
        inside = in_channels
        for stage, (count, factor) in enumerate(zip(_CONVOLUTIONS[depth], (1, 2, 4, 8, 8), strict=True)):
            channels = width * factor
            if stage > 0:
                features.append(nn.MaxPool2d(2))
            for _ in range(count):
                features += [nn.Conv2d(inside, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
                inside = channels
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inside, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → logits (N, classes)."""
        logits: Tensor = self.fc(self.pool(self.features(x)).flatten(1))
        return logits
