"""CIFAR-10 and CIFAR-100: the binary or the python version, as a folder or as the downloaded archive."""

import io
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ntksap.data.base import AGAIN, WHERE, DataError, Dataset
from ntksap.data.checksums import verify
from ntksap.data.memory import MemorySplit
from ntksap.data.pickled import unpickle

PIXELS = 3 * 32 * 32  # an image is its red plane, then green, then blue, each row by row


@dataclass(frozen=True)
class Version:
    """One published form of a set. `train` and `test` say how many images each of its files holds."""

    archive: str
    folder: str
    train: dict[str, int]
    test: dict[str, int]
    pickled: bool = False


@dataclass(frozen=True)
class Cifar:
    """What differs between the two sets.

    label_bounds: for each label byte of a binary record, how many values it may take; the last is the class.
    labels_key: where the pickled version keeps the classes. mean, std: of the training pixels, per channel.
    """

    name: str
    label_bounds: tuple[int, ...]
    labels_key: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    versions: tuple[Version, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """The names it may have in a data directory; the first that is found is read: folders before archives."""
        return tuple(v.folder for v in self.versions) + tuple(v.archive for v in self.versions)


CIFAR10 = Cifar(
    name="cifar10",
    label_bounds=(10,),
    labels_key="labels",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    versions=(
        Version(
            archive="cifar-10-binary.tar.gz",
            folder="cifar-10-batches-bin",
            train={f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
            test={"test_batch.bin": 10_000},
        ),
        Version(
            archive="cifar-10-python.tar.gz",
            folder="cifar-10-batches-py",
            train={f"data_batch_{i}": 10_000 for i in range(1, 6)},
            test={"test_batch": 10_000},
            pickled=True,
        ),
    ),
)
CIFAR100 = Cifar(
    name="cifar100",
    label_bounds=(20, 100),  # superclass, class
    labels_key="fine_labels",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    versions=(
        Version("cifar-100-binary.tar.gz", "cifar-100-binary", {"train.bin": 50_000}, {"test.bin": 10_000}),
        Version("cifar-100-python.tar.gz", "cifar-100-python", {"train": 50_000}, {"test": 10_000}, pickled=True),
    ),
)


def read_cifar10(root: Path, workers: int) -> Dataset:
    """Return CIFAR-10, 3×32×32. The images are in memory, so there is nothing for workers to do."""
    return read(CIFAR10, root)


def read_cifar100(root: Path, workers: int) -> Dataset:
    """Return CIFAR-100 with its 100 fine classes, 3×32×32. There is nothing for workers to do."""
    return read(CIFAR100, root)


def read(cifar: Cifar, root: Path) -> Dataset:
    """Return the set found in the data directory; every file is checked."""
    path = next((root / place for place in cifar.places if (root / place).exists()), None)
    if path is None:
        raise DataError(
            f"{cifar.name} is not in {root.absolute()}: expected one of {', '.join(cifar.places)}. "
            f"{WHERE}, or add --download"
        )
    version = next(v for v in cifar.versions if path.name in (v.folder, v.archive))
    counts = {**version.train, **version.test}
    parts = {}
    for name, place, blob in _blobs(version, path):
        verify(f"{version.folder}/{name}", place, io.BytesIO(blob))
        try:
            parts[name] = (_unpickled if version.pickled else _binary)(cifar, blob, counts[name])
        except (ValueError, pickle.UnpicklingError) as error:
            raise DataError(f"{place} is damaged: {error}. {AGAIN}") from error
    if absent := counts.keys() - parts.keys():
        raise DataError(
            f"{path / min(absent)} is missing: {path.name} should hold {', '.join(counts)}. "
            f"Delete {path.name} and get it again (--download fetches it)"
        )

    def split(names: dict[str, int]) -> MemorySplit:
        images = np.concatenate([parts[name][0] for name in names]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([parts[name][1] for name in names])
        return MemorySplit(
            torch.from_numpy(images), torch.from_numpy(labels), mean=cifar.mean, std=cifar.std, pad=4, flip=True
        )

    return Dataset(cifar.name, cifar.label_bounds[-1], (3, 32, 32), split(version.train), split(version.test))


def _blobs(version: Version, path: Path) -> Iterator[tuple[str, Path, bytes]]:
    """Yield (name, place for messages, contents) of the version's files; an archive is read without unpacking it."""
    names = {**version.train, **version.test}
    if path.is_dir():
        present = ((name, path / name) for name in names if (path / name).is_file())
        yield from ((name, file, file.read_bytes()) for name, file in present)
        return
    with path.open("rb") as stream:
        verify(version.archive, path, stream)
    members = {f"{version.folder}/{name}": name for name in names}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:  # in the order of the archive: going back would decompress everything again
            if member.name in members and member.isfile() and (contents := tar.extractfile(member)):
                yield members[member.name], path / member.name, contents.read()


def _binary(cifar: Cifar, blob: bytes, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Decode records of label bytes and pixels: (images uint8 N,3072, labels int64 N)."""
    width = len(cifar.label_bounds) + PIXELS
    if len(blob) != count * width:
        raise ValueError(f"{len(blob):,} bytes, expected {count * width:,} ({count:,} images)")
    records = np.frombuffer(blob, np.uint8).reshape(count, width)
    for column, bound in enumerate(cifar.label_bounds):
        _check_labels(records[:, column], bound)
    return records[:, -PIXELS:], records[:, len(cifar.label_bounds) - 1].astype(np.int64)


def _unpickled(cifar: Cifar, blob: bytes, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Decode a pickled batch: (images uint8 N,3072, labels int64 N)."""
    data, labels = unpickle(blob, cifar.labels_key)
    if data.shape != (count, PIXELS) or labels.shape != (count,):
        raise ValueError(f"images {data.shape} and labels {labels.shape}, expected {(count, PIXELS)} and {(count,)}")
    _check_labels(labels, cifar.label_bounds[-1])
    return data, labels


def _check_labels(labels: NDArray[np.integer], bound: int) -> None:
    wrong = (labels < 0) | (labels >= bound)
    if wrong.any():
        raise ValueError(f"a label is {labels[wrong][0]}, expected 0 to {bound - 1}")
