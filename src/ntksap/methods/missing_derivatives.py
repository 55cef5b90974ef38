"""Some functions of torch have no second derivative, or none in forward mode: say which, and for which method."""

from collections.abc import Iterator

from ntksap._base import InputError
from ntksap.pruning import Masks

_SAID = ("derivative for", "forward AD", "differentiate twice", "double backwards")


def explain_failures(states: Iterator[Masks], method: str) -> Iterator[Masks]:
    """Yield the masks of each round; `InputError`, in a sentence, where torch lacks a derivative that is needed."""
    try:
        yield from states
    except (NotImplementedError, RuntimeError) as error:
        said = str(error).strip().split("\n")[0]
        if not any(word in said for word in _SAID):
            raise
        raise InputError(
            f"{method} needs a derivative of the module that torch does not have ({said.rstrip('.')}): use another "
            "method, such as ntk-sap or synflow, which need first derivatives only"
        ) from error
