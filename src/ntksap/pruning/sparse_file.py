"""The file that a pruned model is kept in: bits of its masks, the values that they keep, and everything else whole.

A safetensors file:

- ``masks/NAME``: the mask's bits, as in `ntksap.pruning.mask_file`; ``kept/NAME``: the weights (K,) where it is True,
  in row-major order.
- ``whole/NAME``: every other parameter, and every buffer that a state dict has, each once.
- metadata, under the one key ``ntksap-sparse-1``: a JSON object with ``masks``, {name: [shape, hash]}, ``kept`` and
  ``whole``, {name: hash}, the masks' ``info``, and a hash of all that (`ntksap._base.seals`).

Equal models and masks give equal bytes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ntksap._base import InputError, MaskError, sealed, sha256_of_one, unsealed, write_atomically
from ntksap.net import unwrap
from ntksap.pruning.mask_file import pack, unpack
from ntksap.pruning.masks import Masks

_FORMAT = "ntksap-sparse-1"
_MASK, _KEPT, _WHOLE = "masks/", "kept/", "whole/"


def save_sparse(model: nn.Module, masks: Masks, path: str | Path) -> None:
    """Write a pruned model to a safetensors file that holds no pruned weight, all of it or nothing.

    A float32 model takes 4 bytes for each kept weight and one bit for each prunable one: at 90 % sparsity about an
    eighth of what it takes otherwise. `load_sparse` restores it exactly.

    Args:
        model: a module whose pruned weights are zero. Parameters and buffers of its state dict are saved.
        masks: its masks; their ``info`` is saved with them, as JSON.
        path: the file.

    Raises `MaskError` if a pruned weight is not zero, and `InputError` if the model's state is more than tensors.
    """
    model = unwrap(model)
    if not masks.obeyed_by(model):
        raise MaskError("pruned weights of the model are not zero, and would be lost: call masks.attach(model) first")
    pruned, whole = _parts(model, masks)
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {"masks": {}, "kept": {}, "whole": {}, "info": masks.info}
    for name, weight in pruned.items():
        tensors[_MASK + name] = pack(masks[name])
        tensors[_KEPT + name] = weight.detach().cpu()[masks[name]]
        facts["masks"][name] = [list(masks[name].shape), sha256_of_one(name, tensors[_MASK + name])]
        facts["kept"][name] = sha256_of_one(name, tensors[_KEPT + name])
    for name, tensor in whole.items():
        # A copy of each, since safetensors takes neither channels-last tensors nor two that share memory.
        tensors[_WHOLE + name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        facts["whole"][name] = sha256_of_one(name, tensors[_WHOLE + name])
    try:
        header = json.dumps(sealed(facts))
    except (TypeError, ValueError) as error:
        raise MaskError(f"info of masks is saved as JSON, which cannot hold this: {error}") from error
    write_atomically(path, save(tensors, {_FORMAT: header}))


def load_sparse(model: nn.Module, path: str | Path) -> Masks:
    """Put a model that `save_sparse` wrote into ``model``, exactly, and return its masks.

    No code in the file can run, every tensor is checked against its hash, and on an error nothing is changed. To carry
    on training, attach the masks.

    Args:
        model: a module of the same architecture and precision, with any weights.
        path: the file.

    Raises `MaskError` if the file is damaged, not ours, or for another model.
    """
    model = unwrap(model)
    masks, kept, whole = _read(path)
    pruned, others = _parts(model, masks, path)
    if missing := sorted(others.keys() ^ whole.keys()):
        raise MaskError(f"{path} is for another model: {missing[0]!r} is not in both")
    for name, tensor in (*pruned.items(), *others.items()):
        shape, dtype = (masks[name].shape, kept[name].dtype) if name in kept else (whole[name].shape, whole[name].dtype)
        if shape != tensor.shape or dtype != tensor.dtype:
            raise MaskError(
                f"{path} is for another model: {name!r} is {dtype} of shape {tuple(shape)} there, "
                f"{tensor.dtype} of shape {tuple(tensor.shape)} here"
            )
    with torch.no_grad():
        for name, weight in pruned.items():
            weight.copy_(
                torch.zeros(weight.shape, dtype=weight.dtype, device="cpu").masked_scatter_(masks[name], kept[name])
            )
        for name, tensor in others.items():
            tensor.copy_(whole[name])
    return masks


def _parts(
    model: nn.Module, masks: Mapping[str, Tensor], path: object = "masks"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the pruned parameters, and every other parameter and saved buffer once, by name."""
    state = model.state_dict()
    if strange := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise InputError(f"the model's state holds {strange[0]!r}, which is not a tensor and has no place in the file")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if unknown := [name for name in masks if name not in parameters]:
        raise MaskError(f"{path} is for another model: {unknown[0]!r} is not a parameter of this one")
    pruned: dict[str, Tensor] = {name: parameters[name] for name in masks}
    seen = {id(weight) for weight in pruned.values()}
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return pruned, {name: tensor for name, tensor in own.items() if id(tensor) not in seen and name in state}


def _read(path: str | Path) -> tuple[Masks, dict[str, Tensor], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _FORMAT not in metadata:
                raise MaskError(f"{path}: a safetensors file, but it holds no sparse model of ours ({_FORMAT!r})")
            facts = unsealed(json.loads(metadata[_FORMAT]))
            masks, kept = {}, {}
            for name, (shape, expected) in facts["masks"].items():
                masks[name] = unpack(_checked(file, _MASK, name, expected), shape)
                kept[name] = _checked(file, _KEPT, name, facts["kept"][name])
                if kept[name].shape != (int(masks[name].sum()),):
                    raise ValueError(f"the mask of {name!r} keeps {int(masks[name].sum())} weights, the file differs")
            whole = {name: _checked(file, _WHOLE, name, expected) for name, expected in facts["whole"].items()}
            return Masks(masks, facts["info"]), kept, whole
    except MaskError:
        raise
    except FileNotFoundError:
        raise MaskError(f"{path}: no such file; sparse models are written by save_sparse") from None
    except OSError as error:
        raise MaskError(f"{path}: cannot be read as a sparse model ({error})") from error
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = "its metadata is nested too deeply" if isinstance(error, RecursionError) else error
        raise MaskError(f"{path}: not a sparse model, or damaged ({reason}); copy or save it again") from error


def _checked(file: Any, prefix: str, name: str, expected: str) -> Tensor:
    tensor: Tensor = file.get_tensor(prefix + name)
    if sha256_of_one(name, tensor) != expected:
        raise ValueError(f"{name!r} does not have the hash that it was written with")
    return tensor
