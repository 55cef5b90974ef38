"""Writers of tiny sets in the published formats, made of pieces of a real photo."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from ntksap.data import cifar

CIFAR_COUNT = 30  # images in each file of the tiny CIFAR sets
TINY_WNIDS = ["n02124075", "n01443537", "n07920052"]  # not sorted, as in the published file


def shrink(spec: cifar.Cifar) -> cifar.Cifar:
    """The same set with CIFAR_COUNT images in each file."""
    versions = (
        replace(v, train=dict.fromkeys(v.train, CIFAR_COUNT), test=dict.fromkeys(v.test, CIFAR_COUNT))
        for v in spec.versions
    )
    return replace(spec, versions=tuple(versions))


def binary_records(spec: cifar.Cifar, photo: np.ndarray, count: int, seed: int) -> bytes:
    """`count` records of label bytes and 32×32 pieces of the photo; every class appears as evenly as can be."""
    rng = np.random.default_rng(seed)
    blob = b""
    for i in range(count):
        y, x = rng.integers(0, photo.shape[0] - 32), rng.integers(0, photo.shape[1] - 32)
        labels = bytes((seed * count + i) % bound for bound in spec.label_bounds)
        blob += labels + photo[y : y + 32, x : x + 32].transpose(2, 0, 1).tobytes()
    return blob


def write_cifar_folder(spec: cifar.Cifar, root: Path, photo: np.ndarray) -> Path:
    """Write the binary version as a folder."""
    version = spec.versions[0]
    folder = root / version.folder
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate({**version.train, **version.test}.items()):
        (folder / name).write_bytes(binary_records(spec, photo, count, seed))
    return folder


def save_piece(photo: np.ndarray, path: Path, width: int, height: int, seed: int) -> None:
    """Save a piece of the photo in the format that the name asks for."""
    rng = np.random.default_rng(seed)
    y, x = rng.integers(0, photo.shape[0] - height), rng.integers(0, photo.shape[1] - width)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo[y : y + height, x : x + width]).save(path, "PNG" if path.suffix == ".png" else "JPEG")


def write_tiny_imagenet(root: Path, photo: np.ndarray) -> Path:
    """Write 3 classes with 4 training and 2 validation images each, in the published layout."""
    folder = root / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(TINY_WNIDS):
        for i in range(4):
            save_piece(photo, folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 64, 64, 10 * label + i)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("not an image\n")
    for i in range(6):
        save_piece(photo, folder / "val" / "images" / f"val_{i}.JPEG", 64, 64, 100 + i)
        lines.append(f"val_{i}.JPEG\t{TINY_WNIDS[i % 3]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(TINY_WNIDS) + "\n")
    return folder


def write_imagenet(root: Path, photo: np.ndarray) -> Path:
    """Write 2 classes with 3 training and 2 validation images each, wide and tall."""
    folder = root / "imagenet"
    sizes = [(320, 240), (150, 260), (300, 300)]
    for c, wnid in enumerate(["n02391049", "n01882714"]):
        for i, (width, height) in enumerate(sizes):
            save_piece(photo, folder / "train" / wnid / f"{wnid}_{i}.JPEG", width, height, 10 * c + i)
        for i, (width, height) in enumerate(sizes[:2]):
            save_piece(photo, folder / "val" / wnid / f"ILSVRC2012_val_{c}{i}.JPEG", width, height, 50 + 10 * c + i)
    return folder
