"""Plain values that carry a hash of themselves, so that a flipped bit in their file is noticed.

The hash is of values, not of bytes: it is the same for an object in a JSON file, a line of JSON, a TOML file or the
metadata of a tensor file, however it is laid out. It travels with what it protects, so nothing has to be kept in step.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ntksap._base.errors import DamageError
from ntksap._base.files import write_json

SEAL = "sha256"
"""The key that holds the hash."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values``, as JSON would return them, with a hash of all of them under `SEAL`.

    >>> unsealed(sealed({"top1": 0.5, "layers": (1, 2)}))
    {'top1': 0.5, 'layers': [1, 2]}
    """
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return {**plain, SEAL: _digest(plain)}


def unsealed(values: Any) -> dict[str, Any]:
    """Return the values that were sealed; those written before there were seals come back as they are.

    Raises ValueError if they are not an object, or not those that were sealed.
    """
    if not isinstance(values, dict):
        raise ValueError("it holds no object")
    for key, value in values.items():
        if isinstance(value, str) and len(value) == 64:
            rest = {other: held for other, held in values.items() if other != key}
            if value == _digest(rest):
                if key != SEAL:  # only the name of the hash is damaged; without it the file would pass for an old one
                    raise ValueError("its contents do not have the hash that they were written with")
                return rest
    if SEAL in values:
        raise ValueError("its contents do not have the hash that they were written with")
    return values


def write_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """Write one JSON object with its hash, atomically."""
    write_json(path, sealed(values))


def read_sealed(path: Path) -> dict[str, Any]:
    """Return what `write_sealed` wrote; `DamageError` if it has changed since."""
    try:
        return unsealed(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: {error}. Remove it, and the same command makes it again") from error


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
