"""Which tensors of a layer are weights, and how they are laid out."""

import fnmatch
import math
import sys
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

_WEIGHTS: dict[type[nn.Module], str] = {
    _ConvNd: "weight",
    nn.Linear: "weight",
    nn.Bilinear: "weight",
    nn.MultiheadAttention: "*_proj_weight",
    nn.RNNBase: "weight_*",
    nn.RNNCellBase: "weight_*",
}
"""Which parameters of a layer are its weights, by name; biases and normalisation never are."""


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's own module from inside ``torch.compile``, DDP, DataParallel or Fabric: names stay the same."""
    while True:
        inner = getattr(module, "_orig_mod", None) or getattr(module, "_original_module", None)  # compiled; Fabric's
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def layer_weights(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the weights that ``module`` itself (not its children) owns as a layer that multiplies by a matrix.

    The experts of a mixture, stacked in one tensor (experts, rows, columns), are weights too. A tensor that a
    parametrization computes a weight from is not one: a row of zeros under weight_norm gives NaN, and under others
    zeros do not stay zeros.
    """
    patterns = [pattern for kind, pattern in _WEIGHTS.items() if isinstance(module, kind)]
    if is_transformers_conv1d(module):
        patterns.append("weight")
    for name, parameter in module._parameters.items():
        if parameter is None or name.endswith(("_g", "_v", "_orig")):  # from the older weight_norm and spectral_norm
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) or is_stack(module, parameter.shape):
            yield parameter


def is_stack(module: nn.Module, shape: Sequence[int]) -> bool:
    """Return whether a parameter of this shape in ``module`` holds the matrices of several experts.

    It then has three dimensions, of which the first counts experts; the name of the module or its class decides.
    """
    if len(shape) != 3 or isinstance(module, _ConvNd):
        return False
    counts = [getattr(module, name, None) for name in ("num_experts", "num_local_experts", "n_experts")]
    return "expert" in type(module).__name__.lower() or shape[0] in [count for count in counts if type(count) is int]


def has_columns_first(module: nn.Module) -> bool:
    """Return whether the matrices that ``module`` owns are (…, inputs, outputs), not (…, outputs, inputs)."""
    turned = bool(getattr(module, "is_transposed", type(module).__name__ == "Llama4TextExperts"))  # in transformers
    return is_transformers_conv1d(module) or turned


def fan_in(module: nn.Module, weight: Tensor) -> int:
    """Return how many products an output sums over, for a weight that ``module`` owns, in torch's way of counting.

    >>> import torch
    >>> fan_in(nn.Conv2d(4, 6, 3, groups=2), torch.zeros(6, 2, 3, 3))
    18
    """
    if has_columns_first(module):
        return weight.shape[-2]
    return weight.shape[-1] if is_stack(module, weight.shape) else math.prod(weight.shape[1:])


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Return whether it is the linear layer of GPT-2 in transformers, whose weight is (inputs, outputs)."""
    theirs = sys.modules.get("transformers.pytorch_utils")  # a module of theirs exists only where this is imported
    return theirs is not None and isinstance(module, theirs.Conv1D)


def by_output(module: nn.Module, values: Tensor) -> Tensor:
    """Return ``values``, shaped like a weight that ``module`` owns, as (output channels, everything else).

    >>> import torch
    >>> by_output(nn.ConvTranspose2d(4, 6, 3, groups=2), torch.zeros(4, 3, 3, 3)).shape
    torch.Size([6, 18])
    """
    if is_transformers_conv1d(module) or is_stack(module, values.shape):
        return (values.mT if has_columns_first(module) else values).flatten(0, -2)
    if isinstance(module, _ConvTransposeNd):  # (inputs, outputs ÷ groups, …)
        grouped: Tensor = values.unflatten(0, (module.groups, -1))
        return grouped.transpose(1, 2).flatten(0, 1).flatten(1)
    return values.reshape(len(values), -1)
