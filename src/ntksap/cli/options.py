"""Command-line arguments that several commands share, and how they become values."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import nn

from ntksap import models
from ntksap._allocate import ALLOCATIONS
from ntksap._base import InputError, NtksapError, global_seed
from ntksap.data import Dataset
from ntksap.methods import METHODS, method_named


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
        if ":" not in self.model:
            sizes, classes = self._of_table(data)
            with _buildable(self.model, sizes):
                return models.build(self.model, num_classes=classes, input_shape=sizes, seed=self.seed), sizes
        shape = self.input_shape or (data.input_shape if data else ())
        if not shape:
            raise InputError("your own model needs --input-shape, such as --input-shape 3 32 32")
        with global_seed(self.seed, "model"):
            module = _factory(self.model)()
        if not isinstance(module, nn.Module):
            raise InputError(f"{self.model} returned {type(module).__name__}, not an nn.Module")
        return module, shape

    def outline(self) -> nn.Module:
        """Return the model of the table on the meta device: shapes without values, however large."""
        (channels, height, _), classes = self._of_table(None)
        with torch.device("meta"), _buildable(self.model, (channels, height)):
            found = models.model_named(self.model)
            return found.factory(channels, classes or found.num_classes, height)

    def _of_table(self, data: Dataset | None) -> tuple[tuple[int, int, int], int | None]:
        """Return the shape of one input and the number of classes of a model of the table."""
        shape = self.input_shape or (data.input_shape if data else models.model_named(self.model).input_shape)
        classes = data.num_classes if self.classes is None and data else self.classes
        if len(shape) != 3 or min(shape) < 1:
            raise InputError(f"--input-shape of the table's models is C H W, not {' '.join(map(str, shape))}")
        if classes is not None and classes < 1:
            raise InputError(f"--classes must be at least 1, not {classes}")
        channels, height, width = shape
        return (channels, height, width), classes


@contextmanager
def _buildable(model: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn what torch says of sizes that a model cannot have into an error that says so."""
    try:
        yield
    except (RuntimeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, NtksapError):
            raise
        raise InputError(
            f"{model} cannot be built for inputs of {'×'.join(map(str, shape))}: {str(error).splitlines()[0]}"
        ) from error


def _factory(spec: str) -> Callable[[], Any]:
    name, _, attribute = spec.partition(":")
    try:
        found = getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--model {spec}: {error}. Write package.module:factory, importable from here (PYTHONPATH helps), where "
            "factory is a function without arguments, or a class, that makes the module"
        ) from error
    if not callable(found):
        raise InputError(f"--model {spec}: {attribute} is {type(found).__name__}, not a function or class")
    made: Callable[[], Any] = found
    return made


@dataclass(frozen=True)
class KeepArguments:
    """How many weights each layer keeps, which of them, and in which pattern."""

    allocation: Annotated[str | None, tyro.conf.arg(metavar="|".join([*ALLOCATIONS, "METHOD"]))] = None
    """How many weights each layer keeps: a rule of `ntksap allocate`, or a method for the counts of its masks. By
    default the method itself decides."""
    places: Literal["score", "random", "balanced"] = "score"
    """Which weights of a layer are kept: by the method's score, at random, or at random with the same number in every
    output, input and position of a kernel."""
    pattern: Annotated[str | None, tyro.conf.arg(metavar="N:M|transposable-2:4|block:RxC|fan-in|channel")] = None
    """Which weights live or die together, or exclude each other."""
    rescale: bool = False
    """Multiply the kept weights of each layer by 1/√density before training."""

    def settings(self) -> dict[str, Any]:
        """Return the keywords of `ntksap.runs.settings_for`."""
        return {
            "allocation": self.allocation or "",
            "places": self.places,
            "pattern": self.pattern or "",
            "rescale": self.rescale,
        }


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


def listed(text: str) -> list[str]:
    """Return the parts of a text with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def chosen_methods(text: str, data: str | None) -> list[str]:
    """Return the names in ``text``, or all; raise if one is unknown, or needs data where there is none."""
    names = list(METHODS) if text == "all" else listed(text)
    for name in names:
        if not method_named(name).data_free and data is None:
            raise InputError(f"method {name!r} needs data: add --data, or leave it out of --methods")
    return names


def numbers(kind: type[Any], what: str, text: str) -> list[Any]:
    """Return the numbers of a text with commas between them; ``what`` is the name of the option."""
    try:
        found = [kind(part) for part in listed(text)]
    except ValueError:
        raise InputError(f"--{what} are numbers with commas between them, such as 0.9,0.98, not {text!r}") from None
    if not found:
        raise InputError(f"--{what} is empty")
    return found


def fresh_folder(path: Path) -> None:
    """Raise if the output folder cannot be new."""
    try:
        there = path.exists()
    except OSError as error:
        raise InputError(f"--out cannot be used: {error.strerror}") from error
    if there:
        raise InputError(f"{path} exists already; choose another --out or remove it (nothing was changed)")
