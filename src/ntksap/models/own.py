"""A model by what a user calls it: a name from the table or a hub, ``package.module:factory``, or the module."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ntksap._base import InputError, NtksapError, global_seed
from ntksap.models.built import Built
from ntksap.models.hub import HUBS
from ntksap.models.table import build, model_named


def model_for(
    model: str | nn.Module,
    *,
    num_classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    seed: int = 0,
) -> Built:
    """Return a module with its initial weights, and what goes into it.

    Args:
        model: a name from the table, "hf:CONFIG.json" or "timm:NAME" (see `ntksap.models.hub`),
            "package.module:factory" (called without arguments), or a module as it is.
        num_classes: for models from the table, from transformers and from timm.
        input_shape: needed for a model of your own; others have a usual one by default.
        seed: decides initial weights, except those of a module that already exists.
    """
    if isinstance(model, str) and ":" not in model:
        shape = _check_sizes(model, num_classes, input_shape)
        with _buildable(model, shape):
            return Built(build(model, num_classes=num_classes, input_shape=shape, seed=seed), shape)
    if isinstance(model, str) and (hub := model.partition(":")[0]) in HUBS:
        with global_seed(seed, "model"), _buildable(model, tuple(input_shape or ())):
            return HUBS[hub](model.partition(":")[2], num_classes, input_shape)
    if not input_shape:
        raise InputError("your own model needs --input-shape, such as --input-shape 3 32 32")
    if isinstance(model, nn.Module):
        return Built(model, tuple(input_shape))
    with global_seed(seed, "model"):
        module = _factory(model)()
    if not isinstance(module, nn.Module):
        raise InputError(f"{model} returned {type(module).__name__}, not an nn.Module")
    return Built(module, tuple(input_shape))


def outline(name: str, *, num_classes: int | None = None, input_shape: Sequence[int] | None = None) -> nn.Module:
    """Return a model of the table on the meta device: shapes without values, however large."""
    shape, found = _check_sizes(name, num_classes, input_shape), model_named(name)
    with torch.device("meta"), _buildable(name, shape):
        return found.make(shape, num_classes)


def _check_sizes(name: str, num_classes: int | None, input_shape: Sequence[int] | None) -> tuple[int, int, int]:
    """Return the shape of one input of a model of the table; `InputError` for sizes that no model can have."""
    shape = tuple(input_shape or model_named(name).input_shape)
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(f"--input-shape of the table's models is C H W, not {' '.join(map(str, shape))}")
    if num_classes is not None and num_classes < 1:
        raise InputError(f"--classes must be at least 1, not {num_classes}")
    channels, height, width = shape
    return channels, height, width


@contextmanager
def _buildable(name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn what torch says about sizes that a model cannot have into an error that says so."""
    try:
        yield
    except (RuntimeError, ValueError, ZeroDivisionError, TypeError, AttributeError) as error:
        if isinstance(error, NtksapError):
            raise
        inputs = f" for inputs of {'×'.join(map(str, shape))}" if shape else ""
        raise InputError(f"{name} cannot be built{inputs}: {(str(error).splitlines() or ['?'])[0]}") from error


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
