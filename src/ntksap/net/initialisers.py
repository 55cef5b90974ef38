"""Where weight draws come from: functions that overwrite a module's parameters in place from torch's global generator.

`Net.draw` calls them on a private copy, with the global generator seeded before and restored after.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ntksap._base import unknown
from ntksap.net.layers import fan_in, has_columns_first, layer_weights

Initialiser: TypeAlias = Callable[[nn.Module], object]


def reset(module: nn.Module) -> None:
    """Call each module's own ``reset_parameters``, children before parents; modules without one keep their values.

    So do parameters under a parametrization, which torch's layers do not draw through.
    """
    for part in reversed(list(module.modules())):
        if (function := _own_reset(part)) is not None:
            function()


def _own_reset(part: nn.Module) -> Callable[[], object] | None:
    function = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    return function if callable(function) else None


def kaiming_normal(module: nn.Module) -> None:
    """Draw conv, linear, attention, recurrent and expert weights from N(0, 2 / fan-in); the rest as `reset` does."""
    reset(module)
    for part in module.modules():
        for weight in layer_weights(part):
            rows = weight.mT if has_columns_first(part) else weight
            with torch.no_grad():
                rows.normal_(0, math.sqrt(2 / fan_in(part, weight)))


def kaiming_variances(module: nn.Module) -> Iterator[tuple[Tensor, float]]:
    """Yield what `kaiming_normal` draws with mean 0 and a known variance, later ones of a tied parameter last."""
    yield from reset_variances(module)
    for part in module.modules():
        for weight in layer_weights(part):
            yield weight, 2 / fan_in(part, weight)


def reset_variances(module: nn.Module) -> Iterator[tuple[Tensor, float]]:
    """Yield what `reset` draws with mean 0 and a known variance, by torch's own layers: the mean over its entries.

    Weights and biases come from U(−1, 1)/√fan-in; embeddings from N(0, 1), except for the row of a padding; in
    attention, biases are 0 and learnt keys and values follow Xavier. Tied parameters are left out, and those inside
    another module that resets its parts again.
    """
    owned = Counter(id(own) for part in module.modules() for own in part._parameters.values())
    again = {id(part) for whole in module.modules() if _own_reset(whole) for part in list(whole.modules())[1:]}
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            yield from ((bias, 0.0) for bias in (part.in_proj_bias, part.out_proj.bias) if bias is not None)
            yield from ((own, 1 / part.embed_dim) for own in (part.bias_k, part.bias_v) if own is not None)
        if id(part) in again:
            continue
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and owned[id(part.weight)] == 1:
            yield part.weight, 1 - (part.padding_idx is not None) / part.num_embeddings
        if getattr(type(part), "reset_parameters", None) in (nn.Linear.reset_parameters, _ConvNd.reset_parameters):
            weight, bias = (part._parameters.get(name) for name in ("weight", "bias"))
            for own in (weight, bias):
                if weight is not None and own is not None and owned[id(own)] == 1:
                    yield own, 1 / (3 * fan_in(part, weight))


@torch.no_grad()
def shuffle(module: nn.Module) -> None:
    """Permute the present values within each conv, linear, attention and recurrent weight; the rest stays."""
    for part in module.modules():
        for weight in layer_weights(part):
            weight.copy_(weight.flatten()[torch.randperm(weight.numel(), device="cpu")].view_as(weight))


INITIALISERS: dict[str, Initialiser] = {"kaiming_normal": kaiming_normal, "reset": reset, "shuffle": shuffle}


_VARIANCES: dict[Initialiser, Callable[[nn.Module], Iterator[tuple[Tensor, float]]]] = {
    kaiming_normal: kaiming_variances,
    reset: reset_variances,
}


def variances(init: Initialiser, module: nn.Module) -> dict[str, float]:
    """Return the exact variance of each parameter, by name, that ``init`` is known to draw with mean 0.

    >>> variances(kaiming_normal, nn.Linear(8, 4))
    {'weight': 0.25, 'bias': 0.041666666666666664}
    """
    found = _VARIANCES[init](module) if init in _VARIANCES else ()
    known = {id(parameter): variance for parameter, variance in found}
    return {name: known[id(parameter)] for name, parameter in module.named_parameters() if id(parameter) in known}


def initialiser(init: str | Initialiser) -> Initialiser:
    """Return ``init`` itself if it is a callable ``module -> None``, else the initialiser of that name."""
    if callable(init):
        return init
    if init not in INITIALISERS:
        raise unknown("initialiser", init, INITIALISERS)
    return INITIALISERS[init]
