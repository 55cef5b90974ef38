"""Small networks, one for each way in which channels hang together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ntksap


@dataclass(frozen=True)
class Network:
    """How to make one, and inputs for it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]


def images(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, *shape)


def conv_bn(inside: int, outside: int, kernel: int = 3, **settings: Any) -> nn.Sequential:
    padding = settings.pop("padding", kernel // 2)
    convolution = nn.Conv2d(inside, outside, kernel, padding=padding, bias=False, **settings)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU())


class Head(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(2, 6)
        self.branches = nn.ModuleList(nn.Sequential(conv_bn(6, 5), nn.Conv2d(5, 6, 1)) for _ in range(2))
        self.down = nn.Conv2d(6, 8, 1, stride=2)
        self.last = nn.Sequential(conv_bn(6, 8, stride=2), nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = Head(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branch in self.branches:
            x = F.relu(x + branch(x))
        return self.head(F.relu_(self.down(x) + self.last(x)))


class Dense(nn.Module):
    """Concatenated features, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, 4, 3, padding=1)) for w in (4, 8)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 6, 1), nn.AvgPool2d(2))
        self.head = Head(6)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(self.transition(torch.cat(features, 1)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv_bn(1, 4), conv_bn(4, 6), conv_bn(6, 8)
        self.up2, self.merge2 = nn.ConvTranspose2d(8, 6, 2, stride=2), conv_bn(12, 6)
        self.up1, self.merge1 = nn.ConvTranspose2d(6, 4, 2, stride=2), conv_bn(8, 4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        deep = self.bottom(F.max_pool2d(second, 2))
        second = self.merge2(torch.cat([second, self.up2(deep)], 1))
        return self.head(self.merge1(torch.cat([first, self.up1(second)], 1)))


class InvertedResidual(nn.Module):
    """Depthwise convolutions between 1×1 ones, as in MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(2, 6)
        self.block = nn.Sequential(
            conv_bn(6, 12, 1), conv_bn(12, 12, groups=12), nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6)
        )
        self.wide = nn.Conv2d(6, 12, 3, groups=6)  # two outputs for each input
        self.head = Head(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu6(self.wide(x + self.block(x))))


class Shuffle(nn.Module):
    """Halves, a branch on one of them, and a channel shuffle, as in ShuffleNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(2, 8)
        self.branch = nn.Sequential(conv_bn(4, 4, 1), conv_bn(4, 4, groups=4), conv_bn(4, 4, 1))
        self.last = conv_bn(8, 6)
        self.head = Head(6)

    @staticmethod
    def shuffle(x: Tensor, groups: int) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        return self.head(self.last(self.shuffle(torch.cat([left, self.branch(right)], 1), 2)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(2, 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid()
        )
        self.last = conv_bn(8, 6)
        self.head = Head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.last(x * self.gate(x)))


class SpatialGate(nn.Module):
    """A gate from the mean and the maximum over channels (CBAM), which freeze them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(2, 6)
        self.gate = nn.Conv2d(2, 1, 3, padding=1)
        self.last = conv_bn(6, 5)
        self.head = Head(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        summary = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return self.head(self.last(x * torch.sigmoid(self.gate(summary))))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = conv_bn(2, 4, 1), nn.Sequential(conv_bn(2, 3, 1), conv_bn(3, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv_bn(2, 3, 1))
        self.head = Head(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.one(x), self.three(x), self.pool(x)], 1))


class GatedMLP(nn.Module):
    """A gate as in Llama, one as in GLU, and one from a linear layer that holds both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(5, 8, bias=False), nn.Linear(5, 8, bias=False), nn.Linear(8, 6)
        self.both, self.middle = nn.Linear(6, 12), nn.Linear(6, 8)
        self.halves = nn.Linear(8, 10)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(F.silu(self.gate(x)) * self.up(x))
        x = self.middle(F.glu(self.both(x)))
        value, gate = self.halves(x).chunk(2, -1)
        return self.head(value * F.gelu(gate))


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv2d(1, 8, 3, padding=1)
        self.shuffle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(4))
        self.down = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(16, 6, 1), nn.ReLU())
        self.last = nn.Conv2d(6, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.down(self.shuffle(F.leaky_relu(self.inside(x)))))


class SelfAttention(nn.Module):
    """Heads whose number is an attribute."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        shares = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
        return self.out((shares @ v).transpose(1, 2).flatten(2))


class RigidAttention(SelfAttention):
    """Heads whose size is computed from the width of the stream: the code cannot follow, so that they stay."""

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))


class SplitAttention(SelfAttention):
    """Queries, keys and values cut by a size that is an attribute, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.split_size = 12

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(self.split_size, dim=2)
        q, k, v = (part.view(*part.shape[:-1], -1, self.head_dim).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(*x.shape[:-1], -1))


class GroupedQueries(nn.Module):
    """Two queries for each key and value, by the operator's own option."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = (
            nn.Linear(8, 24),
            nn.ModuleList([nn.Linear(8, 12), nn.Linear(8, 12)]),
            nn.Linear(24, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, *self.kv))
        return self.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 12) for _ in range(3))
        self.out = nn.Parameter(torch.randn(3, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, 4)) for part in (self.q, self.k, self.v))
        shares = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
        return torch.einsum("bhts,bshd,hde->bte", shares, v, self.out)


class Block(nn.Module):
    """A transformer's block around an attention: the stream is normalised and stays."""

    def __init__(self, attention: nn.Module, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(width, 20), nn.GELU(), nn.Linear(20, width))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(self.norm1(x))
        return self.head((x + self.mlp(self.norm2(x)))[:, 0])


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, dim_feedforward=12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.embed.weight.dtype)
        out = self.transformer(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(out)


class Mixer(nn.Module):
    """Layers along tokens and along channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 6, 2, stride=2)
        self.tokens = nn.Sequential(nn.Linear(16, 10), nn.GELU(), nn.Linear(10, 16))
        self.channels = nn.Sequential(nn.Linear(6, 14), nn.GELU(), nn.Linear(14, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(x)).mean(1))


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 2, stride=2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 24), nn.Linear(24, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.head = Head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.down(F.gelu(self.up(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))) * self.scale
        return self.head(x + y.permute(0, 3, 1, 2))


class Tied(nn.Module):
    """One layer used twice, and another with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 6)
        self.twice = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.twice.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inside(x))
        return self.head(torch.relu(self.tied(torch.relu(self.twice(torch.relu(self.twice(x)))))))


class LiteralView(nn.Module):
    """A size written into the code: the channels before it stay."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3)
        self.hidden, self.head = nn.Linear(5 * 4 * 4, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.head(F.relu(self.hidden(x.view(-1, 5 * 4 * 4))))


class Recurrent(nn.Module):
    """An operator without a rule between layers that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
        self.rnn = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.inside(x))[0][:, -1])


class TwoInputs(nn.Module):
    """Keyword arguments, two inputs and a dictionary as output."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 6), nn.Linear(4, 6)
        self.joint = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 2))

    def forward(self, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        joined = torch.cat([F.relu(self.left(left)), F.elu(self.right(right))], -1)
        return {"joint": self.joint(joined)}


class Pyramid(nn.Module):
    """Levels of different size that are upsampled and added."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = conv_bn(2, 5), conv_bn(5, 7, stride=2)
        self.lateral = nn.ModuleList([nn.Conv2d(5, 6, 1), nn.Conv2d(7, 6, 1)])
        self.head = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: Tensor) -> list[Tensor]:
        fine = self.fine(x)
        coarse = self.lateral[1](self.coarse(fine))
        up = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        return [self.head(coarse), self.head(F.relu(self.lateral[0](fine) + up))]


class PaddedShortcut(nn.Module):
    """A shortcut that is filled up with channels of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(2, 4)
        self.branch = nn.Sequential(conv_bn(4, 8, stride=2), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.head = Head(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(F.relu(F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + self.branch(x)))


class InPlace(nn.Module):
    """Operators that overwrite their argument, which is read again afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3, padding=1), Head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        F.relu_(x)
        y = self.second(x)
        y += x
        y.mul_(0.5)
        return self.head(y)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


def smooth() -> nn.Module:
    """Functions that do not map 0 to 0: what a removed channel leaves goes into the next bias."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 6), nn.Softplus(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 3)
    )


def smooth_images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.Sigmoid(), nn.Conv2d(6, 5, 3), nn.Softplus(), nn.Conv2d(5, 4, 3, padding=1),
        nn.Sigmoid(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 5),
        nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


def grouped() -> nn.Module:
    return nn.Sequential(
        conv_bn(2, 8), conv_bn(8, 8, groups=2), conv_bn(8, 12, groups=4), nn.ConvTranspose2d(12, 8, 2, groups=4),
        nn.ReLU(), nn.ConvTranspose2d(8, 16, 2, groups=8), nn.ReLU(), Head(16),
    )  # fmt: skip


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.GroupNorm(8, 8),
        nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 4, 1), nn.Hardswish(), Head(4),
    )  # fmt: skip


def sequence() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, padding="same"), nn.BatchNorm1d(6), nn.SiLU(), nn.Conv1d(6, 5, 3, dilation=2), nn.ELU(),
        nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(10, 3),
    )  # fmt: skip


def volume() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 2), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 5, 1), nn.Mish(), nn.Flatten(),
        nn.Linear(5, 3),
    )  # fmt: skip


def flat_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(54), nn.Linear(54, 3)
    )


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 4, 12, dropout=0.1, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def sentences() -> tuple[Tensor, Tensor]:
    return torch.randint(9, (2, 5)), torch.randint(9, (2, 4))


def pairs() -> dict[str, Tensor]:
    return {"left": torch.randn(2, 3), "right": torch.randn(2, 4)}


NETWORKS = [
    Network("mlp", mlp, images(4)),
    Network("functions that are not 0 at 0", smooth, images(4)),
    Network("such functions on images", smooth_images, images(1, 9, 9)),
    Network("lenet", lenet, images(1, 8, 8)),
    Network("residual", Residual, images(2, 6, 6)),
    Network("dense", Dense, images(2, 6, 6)),
    Network("u-net", UNet, images(1, 8, 8)),
    Network("inverted residual", InvertedResidual, images(2, 6, 6)),
    Network("channel shuffle", Shuffle, images(2, 6, 6)),
    Network("squeeze and excite", SqueezeExcite, images(2, 6, 6)),
    Network("spatial gate", SpatialGate, images(2, 6, 6)),
    Network("inception", Inception, images(2, 6, 6)),
    Network("gates", GatedMLP, images(5)),
    Network("pixel shuffle", SuperResolution, images(1, 4, 4)),
    Network("grouped convolutions", grouped, images(2, 6, 6)),
    Network("norms of channels", normalised, images(1, 9, 9)),
    Network("conv1d", sequence, images(2, 12)),
    Network("conv3d", volume, images(1, 3, 3, 3)),
    Network("a norm after flatten", flat_norm, images(2, 5, 5)),
    Network("attention", lambda: Block(SelfAttention()), images(4, 5)),
    Network("rigid attention", lambda: Block(RigidAttention()), images(4, 5)),
    Network("split attention", lambda: Block(SplitAttention()), images(4, 5)),
    Network("grouped queries", lambda: Block(GroupedQueries(), 8), images(4, 5)),
    Network("einsum attention", lambda: Block(EinsumAttention(), 8), images(4, 5)),
    Network("nn.TransformerEncoder", encoder, images(4, 8)),
    Network("nn.Transformer", Translator, sentences),
    Network("mixer", Mixer, images(1, 8, 8)),
    Network("convnext block", ConvNeXtBlock, images(1, 8, 8)),
    Network("tied", Tied, images(4)),
    Network("a size in the code", LiteralView, images(1, 8, 8)),
    Network("lstm", Recurrent, images(5, 4)),
    Network("two inputs", TwoInputs, pairs),
    Network("pyramid", Pyramid, images(2, 8, 8)),
    Network("padded shortcut", PaddedShortcut, images(2, 6, 6)),
    Network("in place", InPlace, images(1, 8, 8)),
    Network("resnet8", lambda: ntksap.models.build("resnet8"), images(3, 16, 16)),
    Network("vgg11-bn", lambda: ntksap.models.build("vgg11-bn"), images(3, 32, 32)),
]
