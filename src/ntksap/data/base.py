"""What every data set is made of: `Dataset`, `Split`, `DataError`, and where order and randomness come from."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ntksap._base import NtksapError, generator_of

WHERE = "Point --data-dir or NTKSAP_DATA at the folder that holds it"
AGAIN = "Delete it and get it again (--download fetches it)"


class DataError(NtksapError, ValueError):
    """A data set is unknown, missing or damaged. The message says which file, what was expected, and what to do."""


class Split(Protocol):
    """The training or the test images of a data set."""

    labels: Tensor  # int64, one per image, on the CPU

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool = False,
        device: torch.device | str = "cpu",
        indices: Tensor | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images float32 N,C,H,W normalised, labels int64 N); the last short batch is kept.

        With seed=None the images come in order. With a seed, order and augmentation depend only on (seed, epoch):
        neither the batch size nor the device changes how an image is augmented. `indices` restricts to those images,
        in the order given; an image is augmented as it would be in the whole epoch. `part` = (k, n) takes the k-th of n
        even shares of every batch, as each process of a job does; the batch's first image stands in for an empty share.
        """
        ...


@dataclass(frozen=True)
class Dataset:
    """Images to train on and to test on."""

    name: str
    num_classes: int
    input_shape: tuple[int, int, int]  # C, H, W
    train: Split
    test: Split


def data_root(root: str | Path | None = None) -> Path:
    """Return the data directory: the argument, else the environment variable NTKSAP_DATA, else ./data."""
    return Path(root if root is not None else os.environ.get("NTKSAP_DATA") or "data").expanduser()


def batch_order(
    total: int,
    batch_size: int,
    *,
    seed: int | None,
    epoch: int,
    augment: bool,
    indices: Tensor | None,
    part: tuple[int, int] = (0, 1),
) -> tuple[Tensor, ...]:
    """Return the image indices of each batch of an epoch over a split of `total` images; check the arguments."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    if augment and seed is None:
        raise ValueError("augment=True needs a seed: augmentation is drawn from (seed, epoch)")
    order = torch.arange(total, device="cpu") if indices is None else indices.cpu()
    if order.ndim != 1 or order.dtype != torch.int64:
        raise ValueError(f"indices must be int64 with one dimension, not {order.dtype} of shape {tuple(order.shape)}")
    if len(order) == 0:
        return ()
    if order.min() < 0 or order.max() >= total:
        raise ValueError(f"indices must be from 0 to {total - 1}, not from {order.min()} to {order.max()}")
    if seed is not None:
        order = order[torch.randperm(len(order), generator=generator_of("order", seed, epoch), device="cpu")]
    mine, parts = part
    shares = [(batch.tensor_split(parts)[mine], batch) for batch in order.split(batch_size)]
    return tuple(share if len(share) else batch[:1] for share, batch in shares)


class OrderedSplit:
    """A split that has only to say how it makes batches of given images."""

    labels: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        augment: bool = False,
        device: torch.device | str = "cpu",
        indices: Tensor | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (images, labels) as `Split.batches` says."""
        order = batch_order(len(self), batch_size, seed=seed, epoch=epoch, augment=augment, indices=indices, part=part)
        return self._batches(order, (seed, epoch) if augment and seed is not None else None, device)

    def _batches(
        self, order: tuple[Tensor, ...], key: tuple[int, int] | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of these images; ``key`` is (seed, epoch) of the augmentation, None for none."""
        raise NotImplementedError


def pruning_batches(
    dataset: Dataset, *, per_class: int = 10, batch_size: int = 256, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Return the pruning set, in batches on the CPU.

    It is exactly `per_class` training images of each class, chosen by the seed, not augmented and shuffled.
    """
    labels = dataset.train.labels
    counts = labels.bincount(minlength=dataset.num_classes)
    if per_class < 1 or counts.min() < per_class:
        raise DataError(
            f"a pruning set of {per_class} images per class cannot be drawn from {dataset.name}: "
            f"its smallest class has {counts.min()} training images"
        )
    rng = generator_of("pruning", seed)
    shuffled = torch.randperm(len(labels), generator=rng, device="cpu")
    by_class = shuffled[labels[shuffled].argsort(stable=True)]  # class 0 first; random order within a class
    starts = counts.cumsum(0) - counts
    chosen = by_class[starts[:, None] + torch.arange(per_class, device="cpu")].flatten()
    chosen = chosen[torch.randperm(len(chosen), generator=rng, device="cpu")]
    return list(dataset.train.batches(batch_size, indices=chosen))
