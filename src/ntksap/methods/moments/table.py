"""The table of rules."""

import operator
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ntksap._base import InputError
from ntksap.methods.moments.value import FIELDS, Moments, Weight, certain

Rule: TypeAlias = Callable[..., Any]
"""Takes what the torch function (or the module, itself first) takes, with `Moments` instead of tensors of numbers that
depend on weights or inputs; returns `Moments`, or a nest of them. Its parameters have the same names as torch's; the
first is always positional."""

Decorated = TypeVar("Decorated", bound=Rule)

RULES: dict[str | type[nn.Module], Rule] = {}
"""A torch function's name without a closing underscore (``"relu"`` is F.relu, torch.relu, Tensor.relu and relu_), or a
type of module whose inside cannot be followed."""

MOVES: set[str] = set()
"""Names of the functions that only move entries, so that every field moves in the same way; they need no rule."""


def rule(*keys: str | type[nn.Module], replace: bool = False) -> Callable[[Decorated], Decorated]:
    """Register a rule for torch functions, by name, or for types of modules.

    >>> @rule("erfinv")
    ... def erfinv(x):
    ...     return elementwise(torch.erfinv, x)
    """

    def register(function: Decorated) -> Decorated:
        for key in keys:
            if (key in RULES or key in MOVES) and not replace:
                raise InputError(f"there is already a rule for {key!r}; pass replace=True to put another in its place")
            RULES[key] = function
        return function

    return register


def moments_of(value: Any) -> Moments:
    """Return moments as they are, and those of a number or a tensor of known values."""
    if isinstance(value, Moments):
        return value
    return certain(
        value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64, device="cpu")
    )


def field_by_field(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply ``func`` to each field of all its `Moments` at once; results that are lists become lists of `Moments`."""
    if args and isinstance(args[0], Weight):  # still a weight when it is transposed or cut
        weight, *rest = args
        moved = func(weight.mask, *rest, **kwargs)
        parts = [weight.moved(part) for part in (moved if isinstance(moved, tuple | list) else [moved])]
        return parts[0] if isinstance(moved, Tensor) else parts
    if (
        args
        and isinstance(args[0], Moments)
        and all(isinstance(value, _PLAIN) for value in (*args[1:], *kwargs.values()))
    ):
        results = [func(getattr(args[0], name), *args[1:], **kwargs) for name in FIELDS]
    else:
        results = []
        for name in FIELDS:
            one_args, one_kwargs = tree_map_only(Moments, operator.attrgetter(name), (args, kwargs))
            results.append(func(*one_args, **one_kwargs))
    if isinstance(results[0], Tensor):
        return Moments(*results)
    if isinstance(results[0], tuple | list):
        return [Moments(*parts) for parts in zip(*results, strict=True)]
    return results[0]


_PLAIN = (int, float, str, torch.Size, torch.dtype, type(None))
"""Types that hold no moments: most functions have nothing else after their first argument, so no tree is searched."""
