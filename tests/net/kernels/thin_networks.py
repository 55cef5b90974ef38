"""Differentiates thin networks in every way that there is; a program of its own, as a failure would end the process.

``python thin_networks.py THREADS METHODS WIDTHS`` prints how many networks survived it.
"""

import itertools
import sys
import warnings

import torch
from torch import nn

import ntksap
from ntksap.analysis.jacobian import Jacobian
from ntksap.data import Dataset, MemorySplit
from ntksap.training import Recipe, TrainState, train


def network(width: int) -> nn.Sequential:
    """A 1×1 convolution with a stride that has ``width`` input channels, which come from a layer with weights."""
    torch.manual_seed(width)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 8, 1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def data(count: int = 32) -> Dataset:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8)
    split = MemorySplit(images, torch.arange(count) % 10, mean=(0.5,) * 3, std=(0.25,) * 3, pad=1, flip=True)
    return Dataset("noise", 10, (3, 8, 8), split, split)


def gradients(model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(model(images).square().sum(), list(model.parameters())))


def check(width: int, methods: list[str]) -> None:
    batches = [(torch.randn(9, 3, 8, 8), torch.arange(9)) for _ in range(2)]
    for method in methods:
        own = {"round_steps": 2} if method == "dpai" else {}
        ntksap.prune(network(width), 0.5, method, data=batches, input_shape=(3, 8, 8), rounds=1, **own)
    masks = ntksap.prune(network(width), 0.5, "random")
    ntksap.ntk(network(width), batches[0][0], masks)
    Jacobian(network(width), batches[0][0]).gram_times(torch.randn(90))
    for precision, kept in itertools.product(("fp32", "bf16"), (None, masks)):
        recipe = Recipe(epochs=1, batch=16, lr=0.01, channels_last=True, precision=precision)
        list(train(TrainState(network(width), recipe, masks=kept), data()))
    # What the layers do inside the block is what a float64 twin does without it.
    model, twin = network(width), network(width).double()
    images = batches[0][0].to(memory_format=torch.channels_last)
    with ntksap.sparse_kernels(model):
        found = gradients(model, images)
    for ours, theirs in zip(found, gradients(twin, images.double().contiguous()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(sys.argv[1]))
    widths = [int(width) for width in sys.argv[3].split(",")]
    for width in widths:
        check(width, sys.argv[2].split(","))
    print(f"{len(widths)} networks")
