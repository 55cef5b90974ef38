"""`Layout`: where the channels of images are while a module is evaluated, and whose kernels its layers use."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import has_own_rules
from ntksap.net.kernels import bears_channels_last, native_layers, sparse_layers
from ntksap.net.unfused import plain_kernels

FIRST, LAST = torch.contiguous_format, torch.channels_last

_OF_LAYOUT = ("contiguous", "stride")
"""Words in the errors of a module that takes for granted that channels come first, such as `Tensor.view`'s."""


class Layout:
    """The layout and the kernels that suit one module, chosen at each evaluation.

    Dense convolutions on a CPU are faster with the channels as the innermost dimension. Kernels for kept weights want
    the channels first, and for a single input the change of layout does not pay. A module that turns out to take
    it for granted that channels come first, as ``x.view(…)`` does, gets them first from then on.

    Args:
        module: the private copy that is evaluated.
        device: where its tensors will be.
        autocast: whether it is evaluated under autocast, which the kernels for kept weights do not support.
    """

    def __init__(self, module: nn.Module, device: torch.device, *, autocast: bool) -> None:
        self._module = module
        self._convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
        cpu = device.type == "cpu"
        self._last = cpu and self._convolutions > 0 and bears_channels_last(module)
        self._sparse = cpu and not autocast

    def evaluate(
        self, function: Callable[[torch.memory_format], Tensor], inputs: Any, kept: Mapping[str, Tensor] | None
    ) -> Tensor:
        """Return ``function(layout)``, which evaluates the module on ``inputs``, in the chosen layout and kernels.

        ``kept``: masks of what is not zero, as in a call of `Net`. An error of the module's own is raised at once;
        only after one that the layout may have caused is it tried again with the channels first.
        """
        sparse = sparse_layers(self._module, kept) if self._sparse and kept is not None else {}
        last = self._last and 2 * len(sparse) <= self._convolutions and not _single(inputs)
        with plain_kernels(self._module), native_layers(self._module, sparse):
            try:
                return function(LAST if last else FIRST)
            except RuntimeError as error:
                if not last or not any(word in str(error) for word in _OF_LAYOUT):
                    raise
            self._last = False
            return function(FIRST)


def laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    """Return images, or the weights of a convolution over them, in this layout; any other tensor as it is."""
    if tensor.dim() != 4 or has_own_rules(tensor):  # the latter has its own layout
        return tensor
    return tensor.contiguous(memory_format=layout)


def _single(inputs: Any) -> bool:
    """Whether there is one input only, as far as can be told."""
    return isinstance(inputs, Tensor) and len(inputs) == 1
