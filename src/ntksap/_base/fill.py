"""A checked dataclass from a table: what a TOML file, the command line and Python all fill in the same way."""

import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ntksap._base.errors import InputError, unknown

_T = TypeVar("_T")
_LARGEST = 2**63
"""Whole numbers from here upwards do not count anything, and torch cannot hold them."""


def fill(cls: type[_T], table: Mapping[str, Any], what: str) -> _T:
    """Return the dataclass ``cls`` filled from a table, each value as `check_value` returns it.

    ``what`` is its name in messages, such as "a recipe". Raises InputError for a key that the class does not have (with
    the nearest that it has), for one that it needs and the table lacks, and for a value of another type.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> fill(Point, {"x": 1}, "a point")
    Point(x=1.0, y=0.0)
    """
    check_keys(cls, table, what)
    needed = [one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in table]:
        raise InputError(f"{what} lacks {', '.join(missing)}")
    kinds = get_type_hints(cls)
    return cls(**{name: check_value(value, kinds[name], f"{name} of {what}") for name, value in table.items()})


def check_keys(cls: type, table: Mapping[str, Any], what: str) -> None:
    """Raise InputError for a key that the dataclass does not have."""
    known = [one.name for one in fields(cls)]
    for key in table:
        if key not in known:
            raise unknown(f"setting of {what}", key, known)


def check_value(value: Any, kind: Any, what: str) -> Any:
    """Return ``value`` with the type that the annotation ``kind`` asks for, or raise InputError.

    An int is accepted for a float and becomes one, a list for a tuple, a table for a dataclass; a bool is not a number.
    The keys of mappings are not checked.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Literal:
        if value not in parts:
            raise InputError(f"{what} is one of {', '.join(map(str, parts))}, not {_show(value)}")
        return value
    if origin in (Union, types.UnionType):
        return _check_union(value, parts, what)
    if origin in (tuple, list, Sequence):
        return _check_sequence(value, origin, parts, what)
    if origin is Mapping or origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{what} is a table, not {_show(value)}")
        return {key: check_value(entry, parts[1], f"{key!r} in {what}") for key, entry in value.items()}
    if is_dataclass(kind) and isinstance(value, Mapping):
        return fill(kind, value, what)  # type: ignore[arg-type]
    allowed = (int, float) if kind is float else kind
    # bool is a subclass of int, but `epochs = true` is a mistake
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{what} is {kind.__name__}, not {_show(value)}")
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise InputError(f"{what} is {_show(value)}, which is too large")
    return float(value) if kind is float else value


def _check_union(value: Any, parts: tuple[Any, ...], what: str) -> Any:
    """Return the value with the first of the types that it fits, so that for int | float an int stays one."""
    if value is None and type(None) in parts:
        return None
    *others, last = [part for part in parts if part is not type(None)]
    for part in others:
        with suppress(InputError):
            return check_value(value, part, what)
    return check_value(value, last, what)


def _show(value: Any) -> str:
    """Return a value for a message: the beginning of it, if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not print
        return "a huge number"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _check_sequence(value: Any, origin: Any, parts: tuple[Any, ...], what: str) -> Any:
    """Return a list or tuple whose entries are checked: a tuple for a tuple, a list otherwise."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{what} is a list, not {_show(value)}")
    kinds = parts if origin is tuple and parts[-1] is not Ellipsis else parts[:1] * len(value)
    if len(kinds) != len(value):
        raise InputError(f"{what} is a list of {len(kinds)}, not {_show(value)}")
    entries = [check_value(entry, kind, f"an entry of {what}") for entry, kind in zip(value, kinds, strict=True)]
    return tuple(entries) if origin is tuple else entries
