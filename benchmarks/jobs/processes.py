"""The same job in one process and in two, with one thread each."""

from typing import Any

import torch

import ntksap
from benchmarks.harness import Job
from benchmarks.team import Team
from ntksap.data.base import Dataset
from ntksap.data.memory import MemorySplit
from ntksap.training.loop import train
from ntksap.training.recipe import Recipe
from ntksap.training.state import TrainState

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def prune(group: Any) -> str:
    """Two rounds of 4 draws of 100 inputs; the hash of the mask."""
    model = ntksap.models.build("resnet20", seed=0)
    settings = {"input_shape": (3, 32, 32), "rounds": 2, "draws": 4}
    return ntksap.prune(model, 0.9, "ntk-sap", group=group, **settings).sha256


def synchronised(group: Any) -> float:
    """Five steps of training with the statistics of whole batches, and a test of 256 images; the mean loss."""
    return local(group, sync_norm=True)


def local(group: Any, sync_norm: bool = False) -> float:
    """The same, each process with the statistics of its share."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1280, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (1280,), generator=generator)
    split = MemorySplit(images, labels, mean=MEAN, std=STD, pad=4, flip=True)
    test = MemorySplit(images[:256], labels[:256], mean=MEAN, std=STD, pad=0, flip=False)
    state = TrainState(
        ntksap.models.build("resnet20", seed=0),
        Recipe(epochs=1, batch=256, lr=0.05, channels_last=True),
        group=group,
        sync_norm=sync_norm,
    )
    return next(train(state, Dataset("generated", 10, (3, 32, 32), split, test))).train_loss


def _job(name: str, title: str, work: Any, agreement: Any) -> Job:
    one, two = Team(1), Team(2)
    target = "≥ 1.7× with two processes"
    return Job(name, title, target, lambda: one(work), lambda: two(work), agreement, repeats=4, memory=False)


def prune_processes() -> Job:
    return _job(
        "prune-processes",
        "NTK-SAP, ResNet-20, 2 rounds of 4 draws: two processes of one thread against one",
        prune,
        lambda one, two: {"same mask": float(one == two)},
    )


def train_processes() -> Job:
    title = "training, ResNet-20, 5 steps of 256: two processes of one thread against one"
    return _job("train-processes", title, local, _losses)


def train_processes_sync() -> Job:
    title = "the same with synchronised statistics"
    return _job("train-processes-sync", title, synchronised, _losses)


def _losses(one: float, two: float) -> dict[str, float]:
    return {"relative difference of the loss": abs(one - two) / one}
