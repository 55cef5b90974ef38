"""Which tensors of a module are weights, and which of those may be pruned."""

import fnmatch
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ntksap._base import InputError

Selector: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""A name pattern (``"layer1.*"``), a module type, or ``(parameter name, its module) -> bool``."""

Selectors: TypeAlias = Selector | Sequence[Selector] | None

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
    """Yield the weights that ``module`` itself (not its children) owns as a layer that multiplies by a matrix."""
    patterns = [pattern for kind, pattern in _WEIGHTS.items() if isinstance(module, kind)]
    if is_transformers_conv1d(module):
        patterns.append("weight")
    for name, parameter in module._parameters.items():
        if parameter is not None and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield parameter


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Return whether it is the linear layer of GPT-2 in transformers, whose weight is (inputs, outputs)."""
    theirs = sys.modules.get("transformers.pytorch_utils")  # a module of theirs exists only where this is imported
    return theirs is not None and isinstance(module, theirs.Conv1D)


def by_output(module: nn.Module, values: Tensor) -> Tensor:
    """Return ``values``, shaped like a weight that ``module`` owns, as (output channels, all else).

    >>> import torch
    >>> by_output(nn.ConvTranspose2d(4, 6, 3, groups=2), torch.zeros(4, 3, 3, 3)).shape
    torch.Size([6, 18])
    """
    if is_transformers_conv1d(module):
        return values.T
    if isinstance(module, _ConvTransposeNd):  # (inputs, outputs ÷ groups, …)
        grouped: Tensor = values.unflatten(0, (module.groups, -1))
        return grouped.transpose(1, 2).flatten(0, 1).flatten(1)
    return values.reshape(len(values), -1)


def prunable_names(module: nn.Module, include: Selectors = None, exclude: Selectors = None) -> tuple[str, ...]:
    """Return the names of the prunable parameters of ``module``, in the module's own order, tied ones once.

    By default: the weights of convolution, linear, attention and recurrent layers that are trainable and not tied to an
    embedding. ``include`` replaces that default by every tensor of two or more dimensions that it selects (a
    tensor of one dimension only by its full name); ``exclude`` then takes away.
    """
    owners: dict[int, list[nn.Module]] = {}
    for owner in module.modules():
        for parameter in owner._parameters.values():
            owners.setdefault(id(parameter), []).append(owner)
    embedded = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    usual = {id(w) for m in module.modules() for w in layer_weights(m) if w.requires_grad} - embedded

    def wanted(name: str, parameter: nn.Parameter) -> bool:
        tied = owners[id(parameter)]
        if include is None:
            chosen = id(parameter) in usual
        else:
            chosen = _selects(include, name, tied) and (parameter.dim() > 1 or name in _listed(include))
        return chosen and not _selects(exclude, name, tied)

    names = tuple(name for name, parameter in module.named_parameters() if wanted(name, parameter))
    if not names:
        raise InputError(
            "nothing prunable: the module has no trainable convolution, linear, attention or recurrent weight that "
            "include and exclude leave. Pass include= (a name pattern, a module type or a callable) to choose tensors "
            "yourself; frozen parameters count only when they are included."
        )
    return names


def _listed(selectors: Selectors) -> Sequence[Selector]:
    if selectors is None:
        return ()
    return selectors if isinstance(selectors, Sequence) and not isinstance(selectors, str) else (selectors,)


def _selects(selectors: Selectors, name: str, owners: Sequence[nn.Module]) -> bool:
    for selector in _listed(selectors):
        if isinstance(selector, str):
            if fnmatch.fnmatchcase(name, selector):
                return True
        elif isinstance(selector, type):
            if any(isinstance(owner, selector) for owner in owners):
                return True
        elif any(selector(name, owner) for owner in owners):
            return True
    return False
