"""Cutting a module down to the indices that are kept: tensors, and the attributes that say how large they are."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ntksap.compaction.attention import CompactMultiheadAttention
from ntksap.net import is_transformers_conv1d

Kept = Mapping[str, Mapping[int, Tensor]]
"""{parameter or buffer: {dimension: the indices that are kept}}, only where something goes."""


def sliced(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """Return ``tensor`` with only the kept indices of each dimension."""
    for dim, indices in kept.items():
        tensor = tensor.index_select(dim, indices.to(tensor.device))
    return tensor


def cut(
    module: nn.Module, kept: Kept, attributes: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Tensor]
) -> nn.Module:
    """Return a copy of ``module`` with smaller tensors; nothing else is copied twice and the module stays as it is.

    Args:
        module: the module to cut.
        kept: the indices to keep.
        attributes: {path of a submodule: {attribute: value}}, set on the copy.
        tensors: values to take instead of the module's own before they are cut.
    """
    memo: dict[int, Any] = {}
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in own.items():
        with torch.no_grad():
            value = sliced(tensors.get(name, tensor).detach(), kept.get(name, {})).clone()
        memo[id(tensor)] = nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
    small = copy.deepcopy(module, memo)
    small._load_state_dict_post_hooks.clear()  # hooks of masks, which have the old shapes
    for path, values in attributes.items():
        part = small.get_submodule(path)
        if isinstance(part, nn.MultiheadAttention):
            part.__class__ = CompactMultiheadAttention
        for attribute, value in values.items():
            setattr(part, attribute, value)
    return small


def layer_attributes(module: nn.Module, kept: Kept) -> dict[str, dict[str, Any]]:
    """Return the attributes that change with the tensors of torch's own layers: {path: {attribute: value}}."""
    changed = {name.rpartition(".")[0] for name in _all_names(module, kept)}
    found = {path: _attributes(part, path, kept, module) for path, part in module.named_modules() if path in changed}
    return {path: values for path, values in found.items() if values}


def _all_names(module: nn.Module, kept: Kept) -> list[str]:
    """Return every name under which the tensors in ``kept`` are known, tied ones more than once."""
    named: list[tuple[str, Tensor]] = [
        *module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)
    ]  # fmt: skip
    tensors = dict(named)
    chosen = {id(tensors[name]) for name in kept}
    return [name for name, tensor in named if id(tensor) in chosen]


def _attributes(part: nn.Module, path: str, kept: Kept, module: nn.Module) -> dict[str, Any]:
    """Return the new values of the attributes of one layer."""
    weight = getattr(part, "weight", None)
    shape = _new_shape(module, weight, kept) if isinstance(weight, Tensor) else ()
    if isinstance(part, nn.MultiheadAttention):
        rows = _new_shape(module, part.out_proj.weight, kept)[1]
        return {"num_heads": rows // part.head_dim, "_qkv_same_embed_dim": False}
    if isinstance(part, nn.Linear):
        return {"out_features": shape[0], "in_features": shape[1]}
    if isinstance(part, _ConvNd):
        return _convolution(part, shape)
    if isinstance(part, _NormBase):
        running = [t for t in (part.weight, part.bias, part.running_mean) if t is not None]
        return {"num_features": _new_shape(module, running[0], kept)[0]} if running else {}
    if isinstance(part, nn.GroupNorm):
        groups = shape[0] if part.num_groups == part.num_channels else part.num_groups
        return {"num_channels": shape[0], "num_groups": groups}
    if isinstance(part, nn.LayerNorm | nn.RMSNorm):
        return {"normalized_shape": tuple(shape)}
    if isinstance(part, nn.Embedding):
        return {"embedding_dim": shape[1]}
    if isinstance(part, nn.PReLU):
        return {"num_parameters": shape[0]}
    if is_transformers_conv1d(part):
        return {"nx": shape[0], "nf": shape[1]}
    return {}


def _convolution(part: _ConvNd, shape: tuple[int, ...]) -> dict[str, int]:
    """Return channels and groups for a new shape of the weight; a depthwise layer has as many groups as inputs left."""
    if isinstance(part, _ConvTransposeNd):
        groups = shape[0] if part.groups > 1 and part.in_channels == part.groups else part.groups
        return {"in_channels": shape[0], "out_channels": shape[1] * groups, "groups": groups}
    depthwise = part.groups > 1 and part.in_channels == part.groups
    groups = shape[0] // (part.out_channels // part.groups) if depthwise else part.groups
    return {"in_channels": shape[1] * groups, "out_channels": shape[0], "groups": groups}


def _new_shape(module: nn.Module, tensor: Tensor, kept: Kept) -> tuple[int, ...]:
    own = next((n for n, t in [*module.named_parameters(), *module.named_buffers()] if t is tensor), "")
    less = kept.get(own, {})
    return tuple(len(less[dim]) if dim in less else size for dim, size in enumerate(tensor.shape))
