"""Command-line arguments that several commands share, and how they become values."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import nn

from ntksap import models
from ntksap.errors import InputError
from ntksap.methods import METHODS
from ntksap.seeds import global_seed


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

    def build(self) -> tuple[nn.Module, tuple[int, ...]]:
        """Return the model with its initial weights, and the shape of one input."""
        if ":" not in self.model:
            shape = self.input_shape or models.model_named(self.model).input_shape
            if len(shape) != 3:
                raise InputError(f"--input-shape of the table's models is C H W, not {' '.join(map(str, shape))}")
            channels, height, width = shape
            module = models.build(
                self.model, num_classes=self.classes, input_shape=(channels, height, width), seed=self.seed
            )
            return module, shape
        if self.input_shape is None:
            raise InputError("your own model needs --input-shape, such as --input-shape 3 32 32")
        with global_seed(self.seed, "model"):
            module = _factory(self.model)()
        if not isinstance(module, nn.Module):
            raise InputError(f"{self.model} returned {type(module).__name__}, not an nn.Module")
        return module, self.input_shape


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


def _options_class() -> type[Any]:
    """Return a dataclass with every option of every method, each None until the user sets it."""
    users: dict[str, list[str]] = {}
    options = {}
    for method in METHODS.values():
        for option in method.options.values():
            users.setdefault(option.name, []).append(method.name)
            options[option.name] = option
    columns = []
    for name, option in options.items():
        kind: Any = option.type
        help = tyro.conf.arg(
            help=option.help[0].upper() + option.help[1:] + ".",
            help_behavior_hint=f"({', '.join(users[name])}; default: {option.default})",
            metavar="True|False" if kind is bool else kind.__name__.upper(),
        )
        columns.append((name, Annotated[kind | None, help], field(default=None)))
    return make_dataclass("MethodOptions", columns, frozen=True)


MethodOptions: type[Any] = _options_class()


def given(options: object) -> dict[str, Any]:
    """Return the method options that the user has set."""
    values = {f.name: getattr(options, f.name) for f in fields(options)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if value is not None}


def fresh_folder(path: Path) -> None:
    """Raise if the output folder cannot be new."""
    if path.exists():
        raise InputError(f"{path} exists already; choose another --out or remove it (nothing was changed)")
