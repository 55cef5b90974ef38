"""What a data set gives to a method that prunes with data."""

from collections.abc import Iterable
from typing import TypeAlias

from torch import Tensor

from ntksap.data import Dataset, pruning_batches
from ntksap.methods import Method
from ntksap.pruning import Data

Images: TypeAlias = Iterable[tuple[Tensor, Tensor]]


def pruning_data(
    method: Method,
    data: Dataset,
    *,
    seed: int,
    per_class: int = 10,
    batch: int = 256,
    train_batch: int = 128,
    augment: bool = True,
) -> Data:
    """Return what ``method`` needs of ``data``, for ``data=`` of `ntksap.prune`.

    Args:
        method: says whether it needs the pruning set or epochs of the training set.
        data: where images come from.
        seed: chooses the pruning set; with the epoch, the order of images and how they are augmented.
        per_class, batch: the pruning set has so many images of each class, in batches of this size.
        train_batch: images per batch of the training set, unless the method says how many it wants.
        augment: whether the training set is augmented.
    """
    if not method.streams:  # also for those that need none: some of their options use data
        return pruning_batches(data, per_class=per_class, batch_size=batch, seed=seed)
    size = method.batch or train_batch

    def epoch(index: int) -> Images:
        return data.train.batches(size, seed=seed, epoch=index, augment=augment)

    return epoch
