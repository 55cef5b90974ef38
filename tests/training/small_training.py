"""A small network, real digits and short recipes, for tests that train."""

from dataclasses import asdict
from functools import cache

import torch
from torch import nn

from ntksap import data
from ntksap.data import Dataset
from ntksap.data.memory import MemorySplit
from ntksap.net.net import Net
from ntksap.pruning.masks import Masks
from ntksap.training.loop import Epoch
from ntksap.training.recipe import Recipe
from ntksap.training.state import TrainState

# "one-cycle" and augmentation: what a resumed training must get right
RECIPE = Recipe(epochs=3, batch=64, lr=0.1, schedule="one-cycle", weight_decay=5e-4)


@cache
def digits(train: int = 300, test: int = 100) -> Dataset:
    """The first so many real digits. 300 leaves a last batch that is short, 100 does for the test set."""
    whole = data.load("digits")

    def first(split: MemorySplit, count: int) -> MemorySplit:
        return MemorySplit(
            split.images[:count],
            split.labels[:count],
            mean=split.mean,
            std=split.std,
            pad=split.pad,
            flip=split.flip,
        )

    return Dataset("some digits", 10, (1, 8, 8), first(whole.train, train), first(whole.test, test))


def network(seed: int = 0, classes: int = 10) -> nn.Sequential:
    """Convolutions, BatchNorm, dropout and a linear layer: buffers to save, and noise in the forward pass."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, classes),
    )


def random_masks(model: nn.Module, density: float = 0.4, seed: int = 5) -> Masks:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: w for name, w in model.named_parameters() if name in Net(model).prunable}
    return Masks({name: torch.rand(w.shape, generator=generator) < density for name, w in weights.items()})


def state_of(recipe: Recipe = RECIPE, *, masked: bool = True, init: int = 0, seed: int = 1) -> TrainState:
    model = network(init)
    return TrainState(model, recipe, masks=random_masks(model) if masked else None, seed=seed)


def untimed(record: Epoch) -> dict[str, float]:
    return {key: value for key, value in asdict(record).items() if key not in ("seconds", "images_per_second")}


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
