"""The 1,797 handwritten digits that ship with scikit-learn: real images, nothing to download."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from ntksap.data.base import Dataset
from ntksap.data.memory import MemorySplit

CLASSES = 10
TEST_PER_CLASS = 36  # 360 test images, 1,437 training images
MEAN = (0.3052,)
STD = (0.3759,)


def read(root: Path, workers: int) -> Dataset:
    """Return the digits, 1×8×8. Neither argument matters: the images are few and come with a package."""
    from sklearn.datasets import load_digits  # slow to import, and only this set needs it

    pixels, labels = load_digits(return_X_y=True)  # N,64 from 0 to 16, and N
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)
    labels = torch.from_numpy(labels.astype(np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool, device="cpu")
    for digit in range(CLASSES):
        members = (labels == digit).nonzero().flatten().tolist()
        # Sorting by hash is a shuffle that no release of any random number generator can change.
        test[sorted(members, key=lambda i: hashlib.sha256(str(i).encode()).digest())[:TEST_PER_CLASS]] = True
    train_split, test_split = (
        MemorySplit(images[part], labels[part], mean=MEAN, std=STD, pad=1, flip=False) for part in (~test, test)
    )
    return Dataset("digits", CLASSES, (1, 8, 8), train_split, test_split)
