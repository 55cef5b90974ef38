"""Tiny-ImageNet and ImageNet in their folder layouts, decoded by any number of workers."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ntksap.data import DataError, Dataset, load
from ntksap.data.imagenet import IMAGENET_MEAN, IMAGENET_STD, TINY_MEAN, TINY_STD
from tests.data.tiny_sets import TINY_WNIDS, write_imagenet, write_tiny_imagenet

# Python 3.12 warns of fork in a process with threads, which torch always has; its loader forks all the same.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def tiny(tmp_path: Path, photo: np.ndarray) -> Path:
    return write_tiny_imagenet(tmp_path, photo)


@pytest.fixture
def imagenet(tmp_path: Path, photo: np.ndarray) -> Path:
    return write_imagenet(tmp_path, photo)


def normalised(path: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    with Image.open(path) as image:
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).double() / 255
    return (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def test_tiny_imagenet_takes_classes_from_wnids_and_test_labels_from_annotations(tiny: Path) -> None:
    dataset = load("tiny-imagenet", tiny.parent)
    assert (dataset.num_classes, dataset.input_shape) == (3, (3, 64, 64))
    assert dataset.train.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert dataset.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    images = torch.cat([images for images, _ in dataset.train.batches(5)])
    path = tiny / "train" / TINY_WNIDS[1] / "images" / f"{TINY_WNIDS[1]}_2.JPEG"
    torch.testing.assert_close(images[6].double(), normalised(path, TINY_MEAN, TINY_STD), rtol=0, atol=1e-5)


def test_imagenet_takes_classes_from_sorted_folders(imagenet: Path) -> None:
    (imagenet / "train" / "notes.txt").write_text("a file is not a class")
    dataset = load("imagenet", imagenet.parent)
    assert (dataset.num_classes, dataset.input_shape) == (2, (3, 224, 224))
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    shutil.copy(imagenet / "val" / "n02391049" / "ILSVRC2012_val_00.JPEG", imagenet / "one.JPEG")
    with Image.open(imagenet / "one.JPEG") as image:
        image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 282, 240)).save(imagenet / "one.png")
    images, _ = next(dataset.test.batches(1, indices=torch.tensor([2])))  # n01882714 comes first
    expected = normalised(imagenet / "one.png", IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(images[0].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-imagenet", "imagenet"])
def test_workers_do_not_change_the_batches(name: str, tiny_load: Callable[..., Dataset]) -> None:
    def run(workers: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        before = torch.get_rng_state()
        batches = list(tiny_load(name, workers=workers).train.batches(4, seed=3, epoch=1, augment=True))
        assert torch.equal(torch.get_rng_state(), before)
        return batches

    expected = run(0)
    for workers in (1, 2):
        for (images, labels), (expected_images, expected_labels) in zip(run(workers), expected, strict=True):
            assert torch.equal(images, expected_images)
            assert torch.equal(labels, expected_labels)


def test_an_epoch_may_be_left_early(tiny_load: Callable[..., Dataset]) -> None:
    split = tiny_load("tiny-imagenet", workers=2).train
    first, _ = next(split.batches(2))
    assert torch.equal(first, next(split.batches(2))[0])


def test_augmentation_differs_between_images_and_epochs(tiny: Path) -> None:
    same = sorted((tiny / "train" / TINY_WNIDS[0] / "images").iterdir())
    for path in same[1:]:
        shutil.copy(same[0], path)  # four times the same picture
    split = load("tiny-imagenet", tiny.parent).train
    views = [next(split.batches(4, seed=0, epoch=epoch, augment=True, indices=torch.arange(4)))[0] for epoch in (0, 1)]
    assert len({view.numpy().tobytes() for view in torch.cat(views)}) == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_an_error_that_names_it(tiny: Path, workers: int) -> None:
    path = tiny / "train" / TINY_WNIDS[1] / "images" / f"{TINY_WNIDS[1]}_3.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    batches = load("tiny-imagenet", tiny.parent, workers=workers).train.batches(6)
    next(batches)
    with pytest.raises(DataError, match=str(path)) as error:
        next(batches)
    assert "Traceback" not in str(error.value)


def test_a_damaged_tiny_imagenet_is_refused(tiny: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(DataError, match=match):
            load("tiny-imagenet", tiny.parent)

    annotations = tiny / "val" / "val_annotations.txt"
    good = annotations.read_text()
    annotations.write_text(good.replace(TINY_WNIDS[2], "n99999999"))
    refused(r"val_annotations\.txt, line 3")
    annotations.write_text(good + "val_99.JPEG\tn01443537\t0\t0\t63\t63\n")
    refused(r"val_annotations\.txt, line 7")
    annotations.write_text(good + "\n")
    refused(r"val_annotations\.txt, line 7")
    annotations.unlink()
    refused(r"val_annotations\.txt cannot be read")
    annotations.write_text(good)
    (tiny / "wnids.txt").write_text("\n")
    refused(r"wnids\.txt is empty")
    (tiny / "wnids.txt").write_text("n00000001\n")
    refused(r"n00000001/images cannot be read")


def test_a_damaged_imagenet_is_refused(imagenet: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(DataError, match=match):
            load("imagenet", imagenet.parent)

    (imagenet / "val" / "n09999999").mkdir()
    refused("same classes.*n09999999")
    (imagenet / "train" / "n09999999").mkdir()
    refused("train/n09999999 holds no images")
    shutil.rmtree(imagenet / "train")
    refused("train holds no class folders")


def test_real_imagenet_samples(tmp_path: Path) -> None:
    """Twenty photos of ImageNet that foolbox ships."""
    spec = importlib.util.find_spec("foolbox")
    if spec is None or spec.origin is None:
        pytest.skip("foolbox, whose ImageNet samples this reads, is not installed")
    samples = sorted((Path(spec.origin).parent / "data").glob("imagenet_*.jpg"))
    for sample in samples:
        label = sample.stem.split("_")[2]
        for part in ("train", "val"):
            folder = tmp_path / "imagenet" / part / f"class{int(label):04}"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(sample, folder / sample.name)
    dataset = load("imagenet", tmp_path)
    assert len(samples) == len(dataset.train) == 20
    images = torch.cat([images for images, _ in dataset.test.batches(8)])
    assert images.shape == (20, 3, 224, 224)
    assert images.mean().abs() < 0.5  # the constants suit real photos
    assert 0.7 < images.std() < 1.4
    augmented = torch.cat([images for images, _ in dataset.train.batches(8, seed=0, augment=True)])
    assert 0.7 < augmented.std() < 1.4
