"""TOML: reading by the standard library (or its twin for Python 3.10), writing as much of it as settings need."""

import json
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

__all__ = ["TOMLDecodeError", "dumps", "loads"]


def dumps(values: Mapping[str, Any]) -> str:
    """Return TOML text for strings, numbers, bools, lists of them, and tables of all that.

    >>> print(dumps({"lr": 0.1, "drops": [80, 120], "recipe": {"name": "quick"}}), end="")
    lr = 0.1
    drops = [80, 120]
    <BLANKLINE>
    [recipe]
    name = "quick"
    """
    return "\n".join(_lines(values, ())).strip("\n") + "\n"


def _lines(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = (*path, _key(key))
            lines += ["", f"[{'.'.join(inner)}]", *_lines(value, inner)]
    return lines


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")
