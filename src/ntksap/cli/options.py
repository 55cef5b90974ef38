"""Command-line arguments that several commands share, and how they become values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from torch import nn

from ntksap import models
from ntksap._base import InputError
from ntksap._prune import ALLOCATIONS
from ntksap.data import Dataset
from ntksap.methods import METHODS

MODEL = "NAME|hf:CONFIG|timm:NAME|MODULE:FACTORY"


@dataclass(frozen=True)
class ModelArguments:
    """Which model."""

    model: Annotated[str, tyro.conf.arg(metavar=MODEL)] = "resnet20"
    """From the table, from transformers (hf:config.json[:CLASS]) or timm, or your own package.module:factory."""
    classes: int | None = None
    """Number of classes (not for your own model)."""
    input_shape: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="C H W")] = None
    """Shape of one input; needed for your own model. For a model that reads tokens, their number."""
    seed: int = 0
    """Decides the initial weights and every draw."""

    def build(self, data: Dataset | None = None) -> models.Built:
        """Return the model with its initial weights, and what goes into it; ``data`` decides what is not given."""
        return models.model_for(
            self.model,
            num_classes=data.num_classes if self.classes is None and data else self.classes,
            input_shape=self.input_shape or (data.input_shape if data else None),
            seed=self.seed,
        )

    def outline(self) -> nn.Module:
        """Return the model of the table on the meta device: shapes without values, however large."""
        return models.outline(self.model, num_classes=self.classes, input_shape=self.input_shape)


@dataclass(frozen=True)
class ChooseArguments:
    """How many weights each layer keeps, and which of them."""

    allocation: Annotated[str | None, tyro.conf.arg(metavar="|".join([*ALLOCATIONS, "METHOD"]))] = None
    """How many weights each layer keeps: a rule of `ntksap allocate`, or a method for the counts of its masks."""
    places: Literal["score", "random", "balanced"] | None = None
    """Which weights of a layer (or channels): by score, at random, or as many in each output, input and position."""
    degree_decay: float = 0.0
    """How much scores fall where the units at both ends keep many weights; 0.2 keeps more units alive."""
    rescale: bool = False
    """Multiply the kept weights of each layer by 1/√density before training."""
    budget: Literal["weights", "multiply-adds"] = "weights"
    """What the sparsity of whole channels and thin networks is a share of; for single weights, of weights."""
    round_to: int = 1
    """Whole channels: each coupled group keeps a multiple of this many, or all."""

    def settings(self) -> dict[str, Any]:
        """Return the keywords of `ntksap.runs.settings_for`."""
        return {**vars(self), "allocation": self.allocation or ""}


@dataclass(frozen=True)
class KeepArguments(ChooseArguments):
    """How many weights each layer keeps, which of them, and in which pattern."""

    pattern: Annotated[str | None, tyro.conf.arg(metavar="N:M|transposable-2:4|block:RxC|fan-in|channel")] = None
    """Which weights live or die together, or exclude each other; channel: whole channels of the network."""

    def settings(self) -> dict[str, Any]:
        """Return the keywords of `ntksap.runs.settings_for`."""
        return {**super().settings(), "pattern": self.pattern or ""}


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
    """Return the parts of a text that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def choose_methods(text: str) -> list[str]:
    """Return the names in ``text``; for "all", every method except those that train the network again and again."""
    return [name for name, method in METHODS.items() if not method.trains] if text == "all" else split_list(text)


def parse_numbers(kind: type[Any], what: str, text: str) -> list[Any]:
    """Return the numbers in a text, separated by commas; ``what`` is the name of the option."""
    try:
        found = [kind(part) for part in split_list(text)]
    except ValueError:
        numbers, example = ("whole numbers", "0,1,2") if kind is int else ("numbers", "0.9,0.98")
        raise InputError(f"--{what} takes {numbers} separated by commas, such as {example}, not {text!r}") from None
    if not found:
        raise InputError(f"--{what} is empty")
    return found
