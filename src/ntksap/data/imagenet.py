"""Tiny-ImageNet and ImageNet in their published folder layouts."""

import os
from pathlib import Path

from ntksap.data.base import WHERE, DataError, Dataset
from ntksap.data.downloads import BY_HAND
from ntksap.data.folders import FolderSplit
from ntksap.data.patches import View

SUFFIXES = (".jpeg", ".jpg", ".png")

TINY_FOLDER = "tiny-imagenet-200"
TINY = View(size=64, shorter_side=64, scale=(0.1, 1.0), ratio=(0.8, 1.25))
TINY_MEAN, TINY_STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)

IMAGENET_FOLDER = "imagenet"
IMAGENET = View(size=224, shorter_side=256, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_tiny_imagenet(root: Path, workers: int) -> Dataset:
    """Return Tiny-ImageNet: labels are positions in wnids.txt, and val/ is the test split (test/ has no labels)."""
    folder = root / TINY_FOLDER
    if not folder.is_dir():
        raise DataError(
            f"tiny-imagenet is not in {root.absolute()}: expected {TINY_FOLDER}/, as {TINY_FOLDER}.zip unpacks. "
            f"{WHERE}, or add --download (which also unpacks)"
        )
    wnids = {wnid: label for label, wnid in enumerate(_text(folder / "wnids.txt").split())}
    if not wnids:
        raise DataError(f"{folder / 'wnids.txt'} is empty: expected the names of the classes. Unpack the set again")
    train = [
        (f"train/{wnid}/images/{name}", label)
        for wnid, label in wnids.items()
        for name in _image_names(folder / "train" / wnid / "images")
    ]
    present = set(_image_names(folder / "val" / "images"))
    annotations = folder / "val" / "val_annotations.txt"
    test = []
    for number, line in enumerate(_text(annotations).splitlines(), start=1):
        name, wnid, *_box = [*line.split("\t"), ""]
        if name not in present or wnid not in wnids:
            raise DataError(f"{annotations}, line {number}: expected an image of val/images and a class of wnids.txt")
        test.append((f"val/images/{name}", wnids[wnid]))
    train_split, test_split = (
        FolderSplit(folder, files, view=TINY, mean=TINY_MEAN, std=TINY_STD, workers=workers) for files in (train, test)
    )
    return Dataset("tiny-imagenet", len(wnids), (3, TINY.size, TINY.size), train_split, test_split)


def read_imagenet(root: Path, workers: int) -> Dataset:
    """Return imagenet/train/<class>/ and imagenet/val/<class>/: the classes are the folders of train/, sorted."""
    folder = root / IMAGENET_FOLDER
    if not folder.is_dir():
        raise DataError(
            f"imagenet is not in {root.absolute()}: expected {IMAGENET_FOLDER}/. {WHERE}. {BY_HAND['imagenet']}"
        )
    classes = _folder_names(folder / "train")
    if not classes:
        raise DataError(f"{folder / 'train'} holds no class folders. {BY_HAND['imagenet']}")
    if odd := set(classes) ^ set(_folder_names(folder / "val")):
        raise DataError(f"{folder}: train and val should hold the same classes; only one of them has {min(odd)}")

    def split(part: str) -> FolderSplit:
        files = [
            (f"{part}/{name}/{file}", label)
            for label, name in enumerate(classes)
            for file in _image_names(folder / part / name)
        ]
        return FolderSplit(folder, files, view=IMAGENET, mean=IMAGENET_MEAN, std=IMAGENET_STD, workers=workers)

    return Dataset("imagenet", len(classes), (3, IMAGENET.size, IMAGENET.size), split("train"), split("val"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Unpack the set again") from error


def _folder_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if path.is_dir())


def _image_names(folder: Path) -> list[str]:
    """Return the sorted names of the images in a folder, at least one; other files are skipped."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error}. Unpack the set again") from error
    if not names:
        raise DataError(f"{folder} holds no images: expected {', '.join(SUFFIXES)} files. Unpack the set again")
    return names
