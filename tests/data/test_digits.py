import hashlib

import numpy as np
import torch
from sklearn.datasets import load_digits

from ntksap.data import load
from ntksap.data.digits import MEAN, STD


def test_digits_are_the_ones_scikit_learn_ships() -> None:
    digits = load("digits")
    assert (digits.num_classes, digits.input_shape) == (10, (1, 8, 8))
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.test.labels.bincount().tolist() == [36] * 10

    images = torch.cat([digits.train.images, digits.test.images]).flatten(1).numpy()
    labels = torch.cat([digits.train.labels, digits.test.labels]).numpy()
    pixels, targets = load_digits(return_X_y=True)
    ours = sorted(
        (bytes(image), label) for image, label in zip(np.rint(images * (16 / 255)).astype("u1"), labels, strict=True)
    )
    theirs = sorted((bytes(image), label) for image, label in zip(pixels.astype("u1"), targets, strict=True))
    assert ours == theirs


def test_the_split_never_changes() -> None:
    images = load("digits").test.images.numpy()
    assert (
        hashlib.sha256(images.tobytes()).hexdigest()
        == "79276f4916b7fb1af3ad0d94d9cd0d880ed41f0ab7239463aa14a6b340b0e979"
    )


def test_the_constants_are_those_of_the_training_pixels() -> None:
    pixels = load("digits").train.images.double() / 255
    assert round(float(pixels.mean()), 4) == MEAN[0]
    assert round(float(pixels.std(correction=0)), 4) == STD[0]


def test_digits_move_by_one_pixel_and_are_never_mirrored() -> None:
    offsets, flips = load("digits").train.draw(seed=0, epoch=0)
    assert offsets.unique().tolist() == [0, 1, 2]
    assert not flips.any()
