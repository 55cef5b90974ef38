"""Masks that remove whole channels, with everything that they would leave behind."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.compaction.groups import ChannelGroups
from ntksap.net import unwrap
from ntksap.pruning import Masks


def channel_masks(model: nn.Module, groups: ChannelGroups, kept: Sequence[Tensor]) -> Masks:
    """Return masks of every parameter on which a removed unit stands: weights, biases, parameters of norms.

    What a removed channel leaves is then exactly 0 in all tensors that carry it, and stays so in training.

    Args:
        model: the module that ``groups`` were read from.
        groups: its coupled channel groups.
        kept: for each group a bool tensor (size), True = kept.

    Raises `InputError` if a group would keep nothing.
    """
    parameters = dict(unwrap(model).named_parameters())
    masks: dict[str, Tensor] = {}
    for group, keep in zip(groups.groups, kept, strict=True):
        if keep.shape != (group.size,) or not keep.any():
            raise InputError(f"a group of {group.size} channels needs {group.size} bools, at least one of them True")
        for member in group.members:
            if member.name not in parameters:
                continue  # a buffer
            gone = (member.units >= 0) & ~keep.numpy()[np.maximum(member.units, 0)]
            mask = masks.setdefault(member.name, torch.ones(parameters[member.name].shape, dtype=torch.bool))
            mask.index_fill_(member.dim, torch.from_numpy(np.flatnonzero(gone)), False)
    return Masks({name: masks[name] for name in parameters if name in masks})
