"""Batched augmentation against a twin that treats one image and one pixel row at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ntksap.data import load
from ntksap.data.memory import MemorySplit, crop_and_flip, normalise

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def one_image(image: np.ndarray, down: int, right: int, flip: bool, pad: int) -> np.ndarray:
    """The standard recipe on one image C,H,W: lay it on black, cut a window, mirror each row."""
    c, h, w = image.shape
    black = np.zeros((c, h + 2 * pad, w + 2 * pad), image.dtype)
    black[:, pad : pad + h, pad : pad + w] = image
    window = black[:, down : down + h, right : right + w]
    return np.stack([[row[::-1] if flip else row for row in plane] for plane in window])


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_crop_and_flip_equals_the_twin(data: st.DataObject) -> None:
    n, c, h, w = (data.draw(st.integers(1, top)) for top in (5, 3, 9, 9))
    pad = data.draw(st.integers(0, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    images = rng.integers(0, 256, (n, c, h, w), dtype=np.uint8)
    offsets, flips = rng.integers(0, 2 * pad + 1, (n, 2)), rng.integers(0, 2, n).astype(bool)
    fast = crop_and_flip(torch.from_numpy(images), torch.from_numpy(offsets), torch.from_numpy(flips), pad)
    slow = [one_image(images[i], *offsets[i], flips[i], pad) for i in range(n)]
    assert fast.dtype == torch.uint8
    assert np.array_equal(fast.numpy(), np.stack(slow))


@pytest.fixture(scope="module")
def photos(photo: np.ndarray) -> MemorySplit:
    pieces = [photo[y : y + 32, x : x + 32] for y in range(0, 390, 32) for x in range(0, 600, 32)]
    images = torch.from_numpy(np.stack(pieces)).permute(0, 3, 1, 2).contiguous()
    return MemorySplit(images, torch.arange(len(images)), mean=MEAN, std=STD, pad=4, flip=True)


def test_an_epoch_equals_the_twin_bit_for_bit(photos: MemorySplit) -> None:
    offsets, flips = photos.draw(seed=7, epoch=2)
    for images, labels in photos.batches(50, seed=7, epoch=2, augment=True):
        for image, i in zip(images, labels.tolist(), strict=True):
            pixels = one_image(photos.images[i].numpy(), *offsets[i].tolist(), bool(flips[i]), photos.pad)
            mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in (MEAN, STD))
            expected = (pixels.astype(np.float32) - mean * np.float32(255)) / (std * np.float32(255))
            assert np.array_equal(image.numpy(), expected)


def test_normalise_equals_float64() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    result = normalise(images, MEAN, STD)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), (images.double() / 255 - mean) / std, rtol=0, atol=1e-6)


def test_padding_is_black_before_normalisation(photos: MemorySplit) -> None:
    offsets, flips = photos.draw(seed=0, epoch=0)
    i = int(((offsets[:, 0] == 0) & ~flips).nonzero()[0])  # moved down by 4: the first rows are padding
    (image, _), *_ = photos.batches(1, seed=0, augment=True, indices=torch.tensor([i]))
    black = -torch.tensor(MEAN) / torch.tensor(STD)
    torch.testing.assert_close(image[0, :, :4], black.view(3, 1, 1).expand(3, 4, 32))


def test_without_augmentation_images_are_only_normalised(photos: MemorySplit) -> None:
    images = torch.cat([images for images, _ in photos.batches(64, seed=None)])
    assert torch.equal(images, normalise(photos.images, MEAN, STD))


def chi_square(*columns: Tensor, sizes: tuple[int, ...]) -> float:
    """How many standard deviations the cell counts of the joint distribution lie from those of a uniform one."""
    cell = torch.zeros_like(columns[0])
    for column, size in zip(columns, sizes, strict=True):
        cell = cell * size + column
    counts = cell.bincount(minlength=int(np.prod(sizes))).double()
    expected = len(cell) / len(counts)
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.fixture(scope="module")
def many() -> MemorySplit:
    n = 50_000
    return MemorySplit(torch.zeros(n, 1, 1, 1).byte(), torch.zeros(n).long(), mean=(0.5,), std=(0.5,), pad=4, flip=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_offsets_and_flips_are_uniform_and_independent(many: MemorySplit, seed: int) -> None:
    offsets, flips = many.draw(seed, epoch=0)
    down, right, flip = offsets[:, 0], offsets[:, 1], flips.long()
    assert abs(chi_square(down, right, flip, sizes=(9, 9, 2))) < 4.5  # within an image
    assert abs(chi_square(down[:-1], right[:-1], down[1:], right[1:], sizes=(9, 9, 9, 9))) < 4.5  # between neighbours
    assert abs(chi_square(flip[:-2], flip[1:-1], flip[2:], sizes=(2, 2, 2))) < 4.5
    next_offsets, next_flips = many.draw(seed, epoch=1)
    assert abs(chi_square(down, next_offsets[:, 0], sizes=(9, 9))) < 4.5  # between epochs
    assert abs(chi_square(flip, next_flips.long(), sizes=(2, 2))) < 4.5


def test_chi_square_would_notice_one_offset_per_batch(many: MemorySplit) -> None:
    offsets, _ = many.draw(seed=0, epoch=0)
    per_batch = offsets[::128, 0].repeat_interleave(128)[: len(many)]
    assert chi_square(per_batch[:-1], per_batch[1:], sizes=(9, 9)) > 100


def test_the_order_is_uniform() -> None:
    split = load("digits").train
    indexed = MemorySplit(split.images, torch.arange(len(split)), mean=(0.3,), std=(0.4,), pad=1, flip=False)
    first = torch.cat([next(iter(indexed.batches(8, seed=seed)))[1] for seed in range(400)])
    assert abs(chi_square(first * 9 // len(split), sizes=(9,))) < 4.5
