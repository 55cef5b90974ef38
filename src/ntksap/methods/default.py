"""The method for whoever names none."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ntksap.net import has_attention
from ntksap.pruning import CHANNEL, MakeInputs, one_input

DEFAULT = "ntk-sap"
FOR_ATTENTION = "random-erk-logits"


def default_method(
    module: nn.Module,
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
    scope: str | None = None,
    pattern: str | None = None,
) -> str:
    """Return the method of a `prune` that names none: ``ntk-sap``, but for a module with attention
    ``random-erk-logits``.

    Methods that rank all weights together starve queries and keys, of which the kernel, the gradient and the paths see
    next to nothing before training, and do worse there than a random mask; docs/allocation.md has the numbers.

    It is also ``ntk-sap`` where a scope or whole channels decide how many weights each layer keeps, and where nobody
    knows: without inputs, or if the module cannot be evaluated without values.
    """
    if scope is not None or pattern == CHANNEL or (input_shape is None and inputs is None):
        return DEFAULT
    try:
        return FOR_ATTENTION if has_attention(module, one_input(module, input_shape, inputs), output) else DEFAULT
    except Exception:  # pruning itself explains what is wrong with the module or its inputs
        return DEFAULT
