"""Architectures in plain torch that are no chain of layers."""

import torch
from torch import Tensor, nn

from tests.methods.architectures.architecture import Architecture

CLASSES = 4
WORDS = 20


def tokens(batch: int, generator: torch.Generator) -> Tensor:
    return torch.randint(WORDS, (batch, 6), generator=generator)


def first_token_class(ids: Tensor) -> Tensor:
    return ids[:, 0] % CLASSES


class Reverser(nn.Module):
    """nn.Transformer from a sequence to the same one reversed; the output layer is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.place = nn.Parameter(torch.randn(6, 16))
        self.transformer = nn.Transformer(16, 2, 2, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        given = self.embed(ids) + self.place
        causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=given.dtype)
        out: Tensor = self.head(self.transformer(given, given, tgt_mask=causal, tgt_is_causal=True))
        return out


class UNet(nn.Module):
    """Down, up, and concatenated skips: one class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self.block(1, 8), self.block(8, 16)
        self.bottom = self.block(16, 32)
        self.up2, self.merge2 = nn.ConvTranspose2d(32, 16, 2, stride=2), self.block(32, 16)
        self.up1, self.merge1 = nn.ConvTranspose2d(16, 8, 2, stride=2), self.block(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(nn.functional.max_pool2d(first, 2))
        deep = self.bottom(nn.functional.max_pool2d(second, 2))
        second = self.merge2(torch.cat([second, self.up2(deep)], 1))
        first = self.merge1(torch.cat([first, self.up1(second)], 1))
        out: Tensor = self.head(first)
        return out


def pixel_loss(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, labels, reduction="sum")


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.rnn = kind(16, 32, num_layers=2, bidirectional=True, batch_first=True, **settings)
        self.head = nn.Linear(2 * (self.rnn.proj_size or self.rnn.hidden_size), CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(ids))
        out: Tensor = self.head(states.mean(1))
        return out


PLAIN = [
    Architecture(
        "nn.Transformer",
        Reverser,
        tokens,
        lambda ids: ids.flip(1),
        prunable=r"transformer\..*(in_proj_weight|out_proj\.weight|linear[12]\.weight)",
    ),
    Architecture(
        "u-net",
        UNet,
        lambda batch, generator: torch.randn(batch, 1, 16, 16, generator=generator),
        lambda images: (nn.functional.avg_pool2d(images, 5, stride=1, padding=2)[:, 0] > 0).long(),
        prunable=r"(down.|bottom|merge.)\.0\.weight|up.\.weight|head\.weight",
        loss=pixel_loss,
    ),
    Architecture(
        "lstm",
        lambda: Recurrent(nn.LSTM, proj_size=16),
        tokens,
        first_token_class,
        prunable=r"rnn\.weight_(ih|hh|hr)_l[01](_reverse)?|head\.weight",
        lr=0.04,
    ),
    Architecture(
        "gru",
        lambda: Recurrent(nn.GRU),
        tokens,
        first_token_class,
        prunable=r"rnn\.weight_(ih|hh)_l[01](_reverse)?|head\.weight",
        lr=0.04,
    ),
]
