"""Prune neural networks before training them.

>>> import ntksap
>>> model = ntksap.models.build("lenet-300-100")
>>> masks = ntksap.prune(model, sparsity=0.9, method="synflow", input_shape=(1, 28, 28))
>>> attached = masks.attach(model)

``__init__.pyi`` beside this file lists the public names and where each comes from. They are imported when they are
first used, so that ``ntksap --help`` need not wait for torch, nor a user of the core for what only the lab needs.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from ntksap._lab import say_what_is_missing

_HOMES = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ntksap' has no attribute {name!r}")
    room = home == "ntksap"
    try:
        found = importlib.import_module(f"ntksap.{name}") if room else getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if sentence := say_what_is_missing(f"ntksap.{name}", error):
            raise ModuleNotFoundError(sentence, name=error.name) from None
        raise
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
