"""Masks that remove whole channels, with everything that they would leave behind."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.compaction.groups import ChannelGroups
from ntksap.net import unwrap
from ntksap.pruning import Masks


def channel_masks(model: nn.Module, groups: ChannelGroups, kept: Sequence[Tensor]) -> Masks:
    """Return masks of every tensor that holds part of a unit: weights, biases, parameters of norms and running means.

    A removed channel is then exactly 0 in all tensors that carry it, and stays 0 in training.

    Args:
        model: the module that ``groups`` were read from.
        groups: its coupled channel groups.
        kept: for each group a bool tensor (size), True = kept.

    Raises `InputError` if a group would keep nothing.
    """
    for group, keep in zip(groups.groups, kept, strict=True):
        if keep.shape != (group.size,) or not keep.any():
            raise InputError(f"a group of {group.size} channels needs {group.size} bools, at least one of them True")
    standing = {member.name for group in groups.groups for member in group.members}
    shapes = {name: shape for name, shape in maskable(model).items() if name in standing}
    return Masks(spread(groups, kept, shapes))


def maskable(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what masks of channels hold at zero: parameters and running means, in their order.

    Other buffers belong to no channel, or must not be 0, like running variances.
    """
    module = unwrap(model)
    means = ((name, buffer) for name, buffer in module.named_buffers() if name.endswith("running_mean"))
    return {name: tuple(tensor.shape) for name, tensor in (*module.named_parameters(), *means)}


def spread(groups: ChannelGroups, kept: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return a mask for each of these tensors: entries that belong to a unit that is not kept go."""
    masks = {name: torch.ones(shape, dtype=torch.bool, device="cpu") for name, shape in shapes.items()}
    for group, keep in zip(groups.groups, kept, strict=True):
        for member in group.members:
            if member.name in masks:
                gone = (member.units >= 0) & ~keep.numpy()[np.maximum(member.units, 0)]
                masks[member.name].index_fill_(member.dim, torch.from_numpy(np.flatnonzero(gone)), False)
    return masks


def gathered(groups: ChannelGroups, masks: Mapping[str, Tensor]) -> list[Tensor]:
    """Return which units masks keep, the reverse of `spread`: those of which any entry is left."""
    kept = []
    for group in groups.groups:
        keep = torch.zeros(group.size, dtype=torch.bool, device="cpu")
        for member in group.members:
            if member.name in masks:
                alive = masks[member.name].movedim(member.dim, 0).flatten(1).any(1).numpy() & (member.units >= 0)
                keep[torch.from_numpy(member.units[alive])] = True
        kept.append(keep)
    return kept
