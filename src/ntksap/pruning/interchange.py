"""Masks from and to other tools: plain dictionaries of tensors, and ``torch.nn.utils.prune``."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from ntksap._base import MaskError
from ntksap.net import unwrap
from ntksap.pruning.masks import Masks

_ORIGINAL, _MASK = "_orig", "_mask"


def from_tensors(tensors: Mapping[str, Tensor]) -> Masks:
    """Return masks from a dictionary of bool tensors, or of numbers that are 0 (pruned) or 1 (kept).

    The way back is ``masks.to("cpu")``, a plain dictionary of bool tensors.

    >>> import torch
    >>> from_tensors({"fc.weight": torch.tensor([[1.0, 0.0]])})["fc.weight"]
    tensor([[ True, False]])
    """
    for name, tensor in tensors.items():
        if not ((tensor == 0) | (tensor == 1)).all():
            raise MaskError(f"{name!r} holds values other than 0 and 1: pass masks, such as (weight != 0), not weights")
    return Masks({name: tensor.bool() for name, tensor in tensors.items()})


def from_torch_prune(source: nn.Module | Mapping[str, Tensor]) -> Masks:
    """Return the masks of a module pruned by ``torch.nn.utils.prune``, or of its state dict.

    Such a module holds ``weight_orig`` and ``weight_mask`` in place of each pruned ``weight``; the masks have the
    plain names. To train with them here, attach them to a fresh module, or first make the pruning of torch permanent
    (``torch.nn.utils.prune.remove``).
    """
    state = unwrap(source).state_dict() if isinstance(source, nn.Module) else source
    names = [key.removesuffix(_ORIGINAL) for key in state if key.endswith(_ORIGINAL)]
    found = {name: state[name + _MASK] for name in names if name + _MASK in state}
    if not found:
        raise MaskError("nothing here is pruned by torch.nn.utils.prune: there is no weight_orig with a weight_mask")
    return from_tensors(found)


def to_torch_prune(masks: Masks, module: nn.Module) -> None:
    """Prune ``module`` in place by ``torch.nn.utils.prune``: a ``weight`` becomes ``weight_orig`` and ``weight_mask``.

    For code that expects that form; to train, `Masks.attach` is simpler and keeps the names. Two limits are torch's
    own: a parameter that two modules share is pruned in the one that the mask names, and attention does not see the
    mask of its output projection, since it never calls that layer.
    """
    masks.check(module)
    modules = dict(unwrap(module).named_modules(remove_duplicate=False))
    buffers = dict(unwrap(module).named_buffers())
    for name, mask in masks.items():
        if name in buffers:  # running means of removed channels, which torch.nn.utils.prune does not know
            continue
        path, _, own = name.rpartition(".")
        torch_prune.custom_from_mask(modules[path], own, mask.to(modules[path].get_parameter(own).device))
