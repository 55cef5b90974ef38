"""Numbers of paths as tensors, and how they move, multiply and pass through layers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ntksap._base import InputError
from ntksap.methods.moments import MOVES

BLOCKED = -1e4
"""A value below this that is added to a logit marks a mask."""
RULES: dict[str, Callable[..., Any]] = {}
"""What torch's functions, by name, make of numbers of paths: the modules beside this one fill it."""

ALIASES = {
    "iadd": "add", "radd": "add", "sub": "add", "isub": "add", "rsub": "add", "subtract": "add", "imul": "mul",
    "rmul": "mul", "multiply": "mul", "truediv": "div", "itruediv": "div", "divide": "div", "true_divide": "div",
    "mm": "matmul", "bmm": "matmul", "maximum": "add", "minimum": "add", "concat": "cat", "concatenate": "cat",
    "_threshold": "threshold",
}  # fmt: skip
ABOUT = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "len", "is_contiguous", "is_floating_point",
    "is_complex", "get_device", "requires_grad", "hash", "element_size", "is_same_size", "is_signed", "set",
}  # fmt: skip
"""Answered from shape, dtype and device."""
LINEAR = {*MOVES, "get", "cumsum", "interpolate", "upsample"}
"""Linear in their one argument: they do to numbers of paths what they do to any others."""


class Counts(Tensor):
    """Numbers of paths, value · e^exponent: the value is at most 1, however many paths there are."""

    exponent: float
    path: bool
    """Whether paths from the input arrive here; not at a weight, through which they only lead."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a torch function with its rule."""
        own, kwargs = func.__name__, kwargs or {}
        name = own.strip("_") if own.startswith("__") else own.rstrip("_")
        name = ALIASES.get(name, name)
        with torch._C.DisableTorchFunctionSubclass():
            if name in ABOUT:
                return func(*args, **kwargs)
            if "input" in kwargs and not args:
                args, kwargs = (kwargs["input"],), {key: value for key, value in kwargs.items() if key != "input"}
            rule = RULES.get(name)
            if rule is None and name not in LINEAR and own != "__getitem__":
                raise InputError(f"paths cannot be followed through {own}")
            result = moved(func, args, kwargs) if rule is None else rule(*args, **kwargs)
            in_place = own.startswith("__i") or (own.endswith("_") and not own.startswith("__"))
            if in_place and isinstance(result, Counts) and result is not args[0]:
                args[0].data = result.as_subclass(Tensor)  # views of what was there before keep their numbers
                args[0].exponent = result.exponent
                return args[0]
            return result


def counts(value: Tensor, exponent: float = 0.0, *, path: bool = True) -> Counts:
    """Return value · e^exponent as a tensor of counts, with 1 as its largest value."""
    with torch._C.DisableTorchFunctionSubclass():
        value = value.as_subclass(Tensor)
        largest = float(value.max()) if value.numel() else 0.0
        made: Counts = (value / largest if largest > 0 else value.clone()).as_subclass(Counts)
        made.exponent, made.path = exponent + math.log(largest) if largest > 0 else -math.inf, path
    return made


def moved(func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a function that is linear in its one argument."""
    (one,) = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Counts))

    def again(part: Tensor) -> Tensor:
        return counts(part, one.exponent, path=one.path) if part.is_floating_point() else part

    return tree_map_only(Tensor, again, func(*args, **kwargs))


def product(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    """Return the rule of a function that is linear in each of its arguments."""

    def rule(*args: Any, **kwargs: Any) -> Counts:
        factors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Counts)]
        return counts(
            func(*args, **kwargs), sum(one.exponent for one in factors), path=any(one.path for one in factors)
        )

    return rule


def layer(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    """Return the rule of a layer: without its bias."""

    def rule(x: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Counts:
        return product(func)(x, weight, None, *args, **kwargs)

    return rule


def mul(x: Any, y: Any) -> Counts:
    """Multiply; a constant factor changes no number of paths, and one of 0 removes them."""
    if not isinstance(x, Counts):
        x, y = y, x
    if not isinstance(y, Tensor) or y.dim() == 0:
        return x  # type: ignore[no-any-return]
    return product(torch.mul)(x, y if isinstance(y, Counts) else (y != 0).to(x.dtype))
