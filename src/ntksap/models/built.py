"""A model that has been built: the module, and what goes into it."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ntksap._base import InputError
from ntksap.pruning import MakeInputs


@dataclass(frozen=True)
class Built:
    """A module with its initial weights, and what goes into it.

    Args:
        module: the module.
        shape: the shape of one input, without the batch.
        inputs: makes the inputs where they are not floating-point numbers of that shape, such as tokens.
    """

    module: nn.Module
    shape: tuple[int, ...]
    inputs: MakeInputs | None = None

    @property
    def probe(self) -> dict[str, Any]:
        """The keywords of `ntksap.prune`, and of all functions that look at models, for what goes into this one."""
        return {"input_shape": self.shape} if self.inputs is None else {"inputs": self.inputs}

    def numbers(self, what: str) -> tuple[nn.Module, tuple[int, ...]]:
        """Return module and shape; `InputError` if the model takes tokens, since ``what`` needs numbers as inputs."""
        if self.inputs is not None:
            raise InputError(f"{what} takes models of images or other numbers, and this one takes tokens")
        return self.module, self.shape
