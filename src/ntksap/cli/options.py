"""Command-line arguments that several commands share, and how they become values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import nn

from ntksap import models
from ntksap._base import InputError
from ntksap.data import Dataset
from ntksap.methods import METHODS


@dataclass(frozen=True)
class ModelArguments:
    """Which model."""

    model: Annotated[str, tyro.conf.arg(metavar="NAME|PACKAGE.MODULE:FACTORY")] = "resnet20"
    """A model from the table, or your own as package.module:factory (called without arguments)."""
    classes: int | None = None
    """Number of classes (models from the table)."""
    input_shape: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="C H W")] = None
    """Shape of one input; needed for your own model, optional for the table's."""
    seed: int = 0
    """Decides the initial weights and every draw."""

    def build(self, data: Dataset | None = None) -> tuple[nn.Module, tuple[int, ...]]:
        """Return the model with its initial weights, and the shape of one input; ``data`` decides what is not given."""
        return models.model_for(
            self.model,
            num_classes=self.classes or (data.num_classes if data else None),
            input_shape=self.input_shape or (data.input_shape if data else None),
            seed=self.seed,
        )


@dataclass(frozen=True)
class DataArguments:
    """Which data, and where it is."""

    data: str = "digits"
    """digits (ships with scikit-learn), cifar10, cifar100, tiny-imagenet or imagenet."""
    data_dir: Path | None = None
    """Where data sets are; by default the environment variable NTKSAP_DATA, else ./data."""
    download: bool = False
    """Fetch the data set if it is not there."""
    workers: int = 0
    """Processes that decode image files."""


def split_list(text: str) -> list[str]:
    """Return the parts of a text with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def choose_methods(text: str) -> list[str]:
    """Return the names in ``text``, or all."""
    return list(METHODS) if text == "all" else split_list(text)


def parse_numbers(kind: type[Any], what: str, text: str) -> list[Any]:
    """Return the numbers of a text with commas between them; ``what`` is the name of the option."""
    try:
        found = [kind(part) for part in split_list(text)]
    except ValueError:
        raise InputError(f"--{what} are numbers with commas between them, such as 0.9,0.98, not {text!r}") from None
    if not found:
        raise InputError(f"--{what} is empty")
    return found
