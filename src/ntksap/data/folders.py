"""Images in files, decoded by worker processes while the device trains."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ntksap._base import generator_of
from ntksap.data.base import DataError, OrderedSplit
from ntksap.data.memory import normalise
from ntksap.data.patches import View, decode


class FolderSplit(OrderedSplit):
    """A split whose images are files.

    files: (path below `folder`, label) of each image. view: how an image becomes a square of pixels.
    mean, std: per channel, in units where white is 1. workers: processes that decode; 0 decodes in this one.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[tuple[str, int]],
        *,
        view: View,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        workers: int,
    ) -> None:
        self.folder = folder
        # One array of bytes: a million str objects would be copied page by page into every worker as their
        # reference counts change.
        self.paths = np.array([os.fsencode(path) for path, _ in files])
        self.labels = torch.tensor([label for _, label in files], dtype=torch.int64, device="cpu")
        self.view = view
        self.mean = mean
        self.std = std
        self.workers = workers

    def _batches(
        self, order: tuple[Tensor, ...], key: tuple[int, int] | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Decoded(self, key),
            batch_size=None,  # the sampler's items are whole batches of indices
            sampler=order,
            num_workers=self.workers,
            generator=generator_of("workers"),  # the loader draws a seed for its workers; not from the global generator
        )
        for index, images in zip(order, loader, strict=True):
            if isinstance(images, DataError):
                raise images
            yield normalise(images.to(device), self.mean, self.std), self.labels[index].to(device)


class _Decoded(TorchDataset[Tensor | DataError]):
    """Batches of decoded images, uint8 N,3,S,S. Key: (seed, epoch) of the augmentation, or None for none.

    A damaged file comes back as a value, since a worker would bury a raised error in its own traceback.
    """

    def __init__(self, split: FolderSplit, key: tuple[int, int] | None) -> None:
        self.split = split
        self.key = key

    def __getitem__(self, index: Tensor) -> Tensor | DataError:
        try:
            return torch.stack([self._image(i) for i in index.tolist()])
        except DataError as error:
            return error

    def _image(self, i: int) -> Tensor:
        # Each image has its own generator, so that neither workers nor batches change what is drawn for it.
        rng = None if self.key is None else generator_of("augment", *self.key, i)
        return decode(self.split.folder / os.fsdecode(self.split.paths[i]), self.split.view, rng)
