"""Tiny sets in the published formats, and a way to publish their checksums."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ntksap.data import Dataset, cifar, load
from ntksap.data.checksums import MD5
from tests.data.tiny_sets import shrink, write_cifar_folder, write_imagenet, write_tiny_imagenet


@pytest.fixture(scope="session")
def photo() -> np.ndarray:
    """A real photo, H,W,3."""
    from sklearn.datasets import load_sample_images

    return load_sample_images().images[1]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Enter the present contents of a file, or of the files of a folder, into the table of checksums."""

    def enter(path: Path) -> None:
        for file in path.iterdir() if path.is_dir() else [path]:
            name = f"{path.name}/{file.name}" if path.is_dir() else file.name
            monkeypatch.setitem(MD5, name, hashlib.md5(file.read_bytes()).hexdigest())

    return enter


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory, photo: np.ndarray) -> Path:
    """A data directory with a tiny version of every set."""
    root = tmp_path_factory.mktemp("data")
    write_cifar_folder(shrink(cifar.CIFAR10), root, photo)
    write_cifar_folder(shrink(cifar.CIFAR100), root, photo)
    write_tiny_imagenet(root, photo)
    write_imagenet(root, photo)
    return root


@pytest.fixture
def tiny_load(
    tiny_root: Path, publish: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Dataset]:
    """`load` of the tiny sets: the same code, with the tiny sets for the published ones."""
    for attribute in ("CIFAR10", "CIFAR100"):
        spec = shrink(getattr(cifar, attribute))
        monkeypatch.setattr(cifar, attribute, spec)
        publish(tiny_root / spec.versions[0].folder)
    return lambda name, **options: load(name, tiny_root, **options)
