"""A training on disk: one safetensors file that is whole, ours and from this very training, or an error."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from ntksap._base import NtksapError, write_atomically

_FORMAT = "ntksap-checkpoint-1"
_DEFAULT = "the default"
_MASK = "mask."


class CheckpointError(NtksapError, ValueError):
    """A checkpoint that is damaged, not ours, or from another model or training."""


def write_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer,
    epoch: int,
    identity: Mapping[str, Any],
    kernels: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    choices: Mapping[str, str] | None = None,
) -> None:
    """Write a training after ``epoch`` epochs, all of it or nothing; equal trainings give equal bytes.

    Tensors: ``model.<name>`` for each parameter and buffer, and ``optimizer.<key>.<name>`` for each tensor that the
    optimizer holds for a parameter (such as ``optimizer.momentum_buffer.fc.weight``, or Adam's ``step``); and
    ``mask.<name>`` for each of ``masks``, where they change during training.
    Metadata: JSON with the epoch, a hash of everything, and ``identity``, the plain values that say which training this
    is; ``kernels``, whose kernels were in use, if that is known; and ``choices``, which way each layer went.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    tensors |= {f"{_MASK}{name}": mask for name, mask in (masks or {}).items()}
    # A copy of each, since safetensors takes neither channels-last tensors nor two that share memory.
    tensors = {
        name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, t in tensors.items()
    }
    facts = {"epoch": epoch, "identity": dict(identity), **({"kernels": kernels} if kernels else {})}
    if choices is not None:
        facts["choices"] = dict(sorted(choices.items()))
    header = {"facts": facts, "sha256": _hash(tensors, facts)}
    write_atomically(path, save(tensors, {_FORMAT: json.dumps(header)}))


def read_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer,
    identity: Mapping[str, Any],
    kernels: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
) -> tuple[int, dict[str, Tensor], dict[str, str] | None]:
    """Restore a training to the state that `write_checkpoint` saved and return its epoch, masks and choices.

    On an error nothing is changed.

    ``masks``: the checkpoint's masks must have the same names, shapes and numbers of kept weights as these; None if it
    must hold none.

    ``kernels``: whose kernels are in use now; a checkpoint that names others is refused (those written by earlier
    versions name none). None accepts any.
    """
    tensors, facts = _read(path)
    if kernels and facts.get("kernels", kernels) != kernels:
        raise CheckpointError(
            f"{path} was written with the kernels of {facts['kernels']}; those here are of {kernels}, which round "
            "differently. Restore the former (a C compiler, NTKSAP_NATIVE), or insist: load(…, other_kernels=True)"
        )
    choices = facts.get("choices")
    if choices is not None and not (isinstance(choices, dict) and all(isinstance(w, str) for w in choices.values())):
        raise CheckpointError(f"{path} is not a checkpoint of ours: its choices are not valid")
    here, there = json.loads(json.dumps(dict(identity))), facts["identity"]
    for key in sorted(here.keys() | there.keys()):
        if (other := there.get(key, _DEFAULT)) != (wanted := here.get(key, _DEFAULT)):
            raise CheckpointError(f"{path} is from another training: {key} is {other!r} there and {wanted!r} here")
    own, held = _model_tensors(model), _held(path, tensors, model)
    found = _masks(tensors)
    _check_masks(path, found, masks or {})
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    states: dict[Tensor, dict[str, Tensor]] = {}
    others = tensors.keys() - {f"model.{name}" for name in held} - {f"{_MASK}{name}" for name in found}
    for full_name in sorted(others):
        _, key, name = [*full_name.split(".", 2), "", ""][:3]
        if name not in parameters:
            raise CheckpointError(f"{path} is from another training: parameter {name!r} was trained there, not here")
        if tensors[full_name].shape not in (parameters[name].shape, torch.Size()):
            raise CheckpointError(f"{path} is from another training: {full_name!r} does not have its parameter's shape")
        # As the optimizer makes them: counters on the CPU, everything else laid out in memory like its parameter.
        like = tensors[full_name] if key == "step" else parameters[name].detach()
        states.setdefault(parameters[name], {})[key] = torch.empty_like(like).copy_(tensors[full_name])
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(held[name])
    optimizer.state.clear()
    optimizer.state.update(states)
    return facts["epoch"], found, choices


def read_model(path: str | Path, model: nn.Module) -> tuple[int, dict[str, Tensor]]:
    """Put the weights and buffers of a checkpoint into ``model``, whatever training it is from.

    Returns its epoch, and its masks if they changed during that training.
    """
    tensors, facts = _read(path)
    held = _held(path, tensors, model)
    with torch.no_grad():
        for name, tensor in _model_tensors(model).items():
            tensor.copy_(held[name])
    epoch: int = facts["epoch"]
    return epoch, _masks(tensors)


def _masks(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(_MASK): tensor for name, tensor in tensors.items() if name.startswith(_MASK)}


def _check_masks(path: str | Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    there, here = (
        {name: (tuple(mask.shape), mask.dtype, int(mask.sum())) for name, mask in masks.items()}
        for masks in (found, wanted)
    )
    if there != here:
        raise CheckpointError(f"{path} is from another training: its masks keep different numbers of weights")


def _held(path: str | Path, tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that belong to the model, by name; an error if they belong to another."""
    held = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    _check_same(path, held, _model_tensors(model))
    return held


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once (unlike a state dict, which repeats them)."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _hash(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Return a hash of everything: safetensors itself does not notice a flipped bit in a weight."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _FORMAT not in metadata:
                raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of ours (format {_FORMAT!r})")
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        header = json.loads(metadata[_FORMAT])
        whole = header["sha256"] == _hash(tensors, header["facts"])
        if type(header["facts"]["epoch"]) is not int or not isinstance(header["facts"]["identity"], dict):
            raise ValueError("it does not say which training it is from")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; checkpoints are written by TrainState.save") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not a checkpoint, or damaged ({error}); {_AGAIN}") from error
    if not whole:
        raise CheckpointError(f"{path}: damaged, its contents do not have the hash that it was written with; {_AGAIN}")
    return tensors, header["facts"]


_AGAIN = "take another copy, or remove it to train again from the start"


def _check_same(path: str | Path, held: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    for name in sorted(held.keys() ^ own.keys()):
        here, there = ("no", "a") if name in held else ("a", "no")
        raise CheckpointError(f"{path} is from another model: it has {there} tensor {name!r}, this model has {here}")
    for name, tensor in own.items():
        if (tensor.shape, tensor.dtype) != (held[name].shape, held[name].dtype):
            raise CheckpointError(
                f"{path} is from another model: {name!r} is {tuple(held[name].shape)} {held[name].dtype} there and "
                f"{tuple(tensor.shape)} {tensor.dtype} here"
            )
