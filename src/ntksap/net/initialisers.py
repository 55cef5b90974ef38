"""Where weight draws come from: functions that overwrite a module's parameters in place from torch's global generator.

`Net.draw` calls them on a private copy, with the global generator seeded before and restored after.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from ntksap._base import unknown
from ntksap.net.layers import is_transformers_conv1d, layer_weights

Initialiser: TypeAlias = Callable[[nn.Module], object]


def reset(module: nn.Module) -> None:
    """Call each module's own ``reset_parameters``, children before parents; what has none keeps its values."""
    for part in reversed(list(module.modules())):
        function = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(function):
            function()


def kaiming_normal(module: nn.Module) -> None:
    """Draw conv, linear, attention and recurrent weights from N(0, 2 / fan-in); all else as `reset` (norms 1 and 0)."""
    reset(module)
    for part in module.modules():
        for weight in layer_weights(part):
            rows = weight.T if is_transformers_conv1d(part) else weight  # fan-in is what one output sums over
            nn.init.kaiming_normal_(rows, nonlinearity="relu")


@torch.no_grad()
def shuffle(module: nn.Module) -> None:
    """Permute the present values within each conv, linear, attention and recurrent weight; all else stays."""
    for part in module.modules():
        for weight in layer_weights(part):
            weight.copy_(weight.flatten()[torch.randperm(weight.numel())].view_as(weight))


INITIALISERS: dict[str, Initialiser] = {"kaiming_normal": kaiming_normal, "reset": reset, "shuffle": shuffle}


def initialiser(init: str | Initialiser) -> Initialiser:
    """Return ``init`` itself if it is a callable ``module -> None``, else the initialiser of that name."""
    if callable(init):
        return init
    if init not in INITIALISERS:
        raise unknown("initialiser", init, INITIALISERS)
    return INITIALISERS[init]
