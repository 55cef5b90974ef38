"""A copy of a module without the values of its weights: what is known from its code and shapes alone."""

import copy
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ntksap._base import InputError
from ntksap.net.layers import unwrap


def shell(module: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a copy in which the named parameters are on the meta device: shapes without values, which take no memory.

    A module that computes weights from others (``weight_norm`` and the like) cannot be copied, and is returned itself.
    Buffers keep their values. Those of a module that was made on the meta device have none; they are computed where the
    module says how (``reset_running_stats``, or ``_init_weights`` of transformers).
    """
    module = unwrap(module)
    if computes_weights(module):
        return module
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)
        for name, p in module.named_parameters()
        if name in names
    }
    copied = copy.deepcopy(module, memo)
    for path, part in copied.named_modules():
        empty = [key for key, buffer in part._buffers.items() if buffer is not None and buffer.is_meta]
        if empty:
            _fill(copied, path, part, empty)
    return copied


def computes_weights(module: nn.Module) -> bool:
    """Whether a weight of a module is not a parameter but computed from some: parametrizations, and the older hooks."""
    return any(is_parametrized(part) or any(map(_is_older, part._parameters)) for part in module.modules())


def _is_older(name: str) -> bool:
    return name.endswith(("weight_orig", "weight_g"))  # of ``spectral_norm`` and ``weight_norm``


def _fill(root: nn.Module, path: str, part: nn.Module, keys: list[str]) -> None:
    for key in keys:
        buffer = part._buffers[key]
        assert buffer is not None
        part._buffers[key] = torch.full(buffer.shape, _unset(buffer), dtype=buffer.dtype, device="cpu")
    reset, initialise = getattr(part, "reset_running_stats", None), getattr(root, "_init_weights", None)
    with torch.no_grad():
        if callable(reset):
            reset()
        elif callable(initialise):
            initialise(part)
    for key in keys:
        buffer = part._buffers[key]
        assert buffer is not None
        if buffer.isnan().any() or (buffer == _unset(buffer)).any():
            raise InputError(
                f"buffer {f'{path}.{key}'.lstrip('.')!r} has no values on the meta device: make the module with its "
                "buffers on the CPU (accelerate.init_empty_weights() does)"
            )


def _unset(buffer: Tensor) -> float | int | bool:
    if buffer.is_floating_point():
        return math.nan
    return False if buffer.dtype == torch.bool else torch.iinfo(buffer.dtype).min
