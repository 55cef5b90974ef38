"""Data sets by name: `load("cifar10")` gives a `Dataset` with a train and a test `Split`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ntksap._base import unknown
from ntksap.data import cifar, digits, imagenet
from ntksap.data import downloads as fetch
from ntksap.data.base import DataError, Dataset, Split, data_root, pruning_batches
from ntksap.data.downloads import download
from ntksap.data.imagenet import IMAGENET_FOLDER, TINY_FOLDER
from ntksap.data.memory import MemorySplit

__all__ = [
    "TABLE",
    "DataError",
    "Dataset",
    "MemorySplit",
    "Source",
    "Split",
    "data_root",
    "download",
    "load",
    "pruning_batches",
]


@dataclass(frozen=True)
class Source:
    """One line of the table.

    `places`: names in the data directory, any of which will do; none for a set that ships. `images`: how many there are
    to train on, where that is known before they are read.
    """

    summary: str
    read: Callable[[Path, int], Dataset]  # (data directory, workers)
    places: tuple[str, ...]
    images: int | None = None


TABLE: dict[str, Source] = {
    "digits": Source("1,797 handwritten digits, 1×8×8, 10 classes; ships with scikit-learn", digits.read, (), 1_437),
    "cifar10": Source("60,000 photos, 3×32×32, 10 classes", cifar.read_cifar10, cifar.CIFAR10.places, 50_000),
    "cifar100": Source("60,000 photos, 3×32×32, 100 classes", cifar.read_cifar100, cifar.CIFAR100.places, 50_000),
    "tiny-imagenet": Source("110,000 photos, 3×64×64, 200 classes", imagenet.read_tiny_imagenet, (TINY_FOLDER,)),
    "imagenet": Source("1.3 million photos, 3×224×224, 1,000 classes", imagenet.read_imagenet, (IMAGENET_FOLDER,)),
}


def load(name: str, root: str | Path | None = None, *, download: bool = False, workers: int = 0) -> Dataset:
    """Return a data set of the table.

    root: the data directory; if None, the environment variable NTKSAP_DATA, else ./data.
    download: fetch the set first if it is not there.
    workers: processes that decode image files; the result does not depend on their number.
    """
    if name not in TABLE:
        raise unknown("data set", name, TABLE)
    source, folder = TABLE[name], data_root(root)
    if download and source.places and not any((folder / place).exists() for place in source.places):
        fetch.download(name, folder)
    return source.read(folder, workers)
