"""Values that come from files, checked against the annotations of the dataclass that they fill."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from ntksap._base.errors import InputError

_LARGEST = 2**63
"""Whole numbers from here on are no counts of anything, and torch cannot hold them."""


def typed(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` as the annotation ``kind`` has it (an int as float, a list as tuple); else `InputError`.

    Knows bool, int, float, str, None, Any, Literal, unions, tuples, and mappings and sequences of any values.

    >>> typed("drops", [80, 120], tuple[int, ...])
    (80, 120)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Literal:
        if not isinstance(value, str) or value not in inner:
            raise InputError(f"{name} is one of {', '.join(map(str, inner))}, not {shown(value)}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return typed(name, value, next(one for one in inner if one is not type(None)))
    if origin is tuple:
        return _tuple(name, value, inner)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InputError(f"{name} is a table, not {shown(value)}")
        return {key: typed(f"{key} in {name}", one, inner[1]) for key, one in value.items()}
    if origin is not None and issubclass(origin, Sequence):
        return list(_tuple(name, value, (inner[0], ...)))
    return _plain(name, value, kind)


def shown(value: Any) -> str:
    """Return a value for a message: the beginning of it, if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not print
        return "a number beyond all bounds"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _tuple(name: str, value: Any, inner: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} is a list, not {shown(value)}")
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
    if len(kinds) != len(value):
        raise InputError(f"{name} is a list of {len(kinds)}, not {shown(value)}")
    return tuple(typed(f"an entry of {name}", one, kind) for one, kind in zip(value, kinds, strict=True))


def _plain(name: str, value: Any, kind: type) -> Any:
    allowed: Any = (int, float) if kind is float else kind
    # bool is a subclass of int, but `epochs = true` is a mistake
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name} is {kind.__name__}, not {shown(value)}")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise InputError(f"{name} is {shown(value)}, more than it can be")
    return kind(value)
