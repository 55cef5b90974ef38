"""The method for whoever names none."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.net import Inputs, has_attention

DEFAULT = "ntk-sap"
FOR_ATTENTION = "random-erk-logits"


def default_method(
    module: nn.Module, inputs: Inputs | None = None, output: Callable[[Any], Tensor] | None = None
) -> str:
    """Return the method to use: ``ntk-sap``, but for a module with attention ``random-erk-logits``.

    Methods that rank all weights together starve queries and keys, which see next to no gradient before training, and
    do worse there than a random mask; docs/allocation.md has the numbers. Where the module cannot be evaluated without
    values, or ``inputs`` is None, nobody knows, and it is ``ntk-sap``.
    """
    try:
        return FOR_ATTENTION if inputs is not None and has_attention(module, inputs, output) else DEFAULT
    except InputError:
        return DEFAULT
