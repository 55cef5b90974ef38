"""Tiny modules, one for each thing that real models have; every method must handle all of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ntksap.methods import Method
from ntksap.net import arguments, first_tensor

CLASSES = 3


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.branch = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1, bias=False)
        )
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head(torch.relu(y + self.branch(y)).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention, dropout, and a tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inside(x)
        attended, weights = self.attention(y, y, y)
        return self.head(self.norm(y + attended).mean(1)), weights


class Tied(nn.Module):
    """One linear layer used twice, once more under another name, and another one tied by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.tied(torch.relu(self.again(torch.relu(self.first(x)))))))


class Tokens(nn.Module):
    """Token ids in, an object with .logits out, and a head that is tied to the embedding."""

    @dataclass
    class Output:
        logits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 6)
        self.mix = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6), nn.LayerNorm(6))
        self.head = nn.Linear(6, CLASSES, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, *, scale: float = 1.0) -> "Tokens.Output":
        return Tokens.Output(self.head(self.mix(self.embed(ids)) * scale).mean(1))


def conv_bn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(54), nn.Linear(54, CLASSES)
    )


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    )


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 2), nn.BatchNorm3d(4), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


def sync_bn() -> nn.Module:
    return nn.SyncBatchNorm.convert_sync_batchnorm(conv_bn())


def no_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, CLASSES, bias=False))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    module[2].requires_grad_(False)
    return module


def token_inputs(batch: int, generator: torch.Generator) -> dict[str, Any]:
    return {"ids": torch.randint(CLASSES, (batch, 4), generator=generator), "scale": 1.5}


def train(
    module: nn.Module, masks: Any, data: list[tuple[Any, Tensor]], epochs: int = 2, lr: float = 0.1
) -> Iterator[None]:
    """Train as a user would who has never heard of this package."""
    module.eval()  # no dropout, so that nothing is drawn
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum=0.9)
    for _ in range(epochs):
        for inputs, labels in data:
            args, kwargs = arguments(inputs)
            optimizer.zero_grad()
            nn.functional.cross_entropy(first_tensor(module(*args, **kwargs)), labels).backward()
            optimizer.step()
        yield


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    input_shape: tuple[int, ...] | None
    inputs: Callable[[int, torch.Generator], Any] | None = None

    def module(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.make()

    def source(self) -> dict[str, Any]:
        return {"input_shape": self.input_shape, "inputs": self.inputs}

    def batches(self, count: int = 2, size: int = 6) -> list[tuple[Any, Tensor]]:
        generator = torch.Generator().manual_seed(11)
        make = self.inputs or (lambda n, g: torch.randn(n, *(self.input_shape or ()), generator=g))
        return [(make(size, generator), torch.randint(CLASSES, (size,), generator=generator)) for _ in range(count)]

    def needs(self, method: Method) -> dict[str, Any]:
        """What a method is given beside the inputs: data, or a training."""
        data = self.batches()
        return {"train": partial(train, data=data)} if method.trains else {"data": data}


CASES = [
    Case("conv-bn", conv_bn, (2, 5, 5)),
    Case("residual", Residual, (2, 5, 5)),
    Case("depthwise", depthwise, (2, 5, 5)),
    Case("conv3d", conv3d, (1, 3, 3, 3)),
    Case("sync-bn", sync_bn, (2, 5, 5)),
    Case("attention", Attention, (3, 4)),
    Case("tied", Tied, (6,)),
    Case("no-bias", no_bias, (5,)),
    Case("frozen", frozen, (5,)),
    Case("tokens", Tokens, None, token_inputs),
]
BY_NAME = {case.name: case for case in CASES}
