"""The field's sanity checks ("missing the mark", Frankle et al., ICLR 2021): which part of a mask matters?"""

from typing import Literal, get_args

import torch

from ntksap._base import generator_of
from ntksap.pruning.masks import Masks

Sanity = Literal["none", "shuffle", "reinit", "invert"]
"""none: the method as it is. shuffle: its mask permuted within each layer. reinit: its mask trained from fresh weights.
invert: the weights with the lowest scores are kept."""

CHECKS: tuple[str, ...] = get_args(Sanity)


def shuffled(masks: Masks, seed: int) -> Masks:
    """Return masks with the same number of kept weights in each layer, at random places.

    >>> masks = Masks({"w": torch.tensor([True, True, False, False])})
    >>> shuffled(masks, 0).kept
    2
    """
    moved = {}
    for name, mask in masks.items():
        order = torch.randperm(mask.numel(), generator=generator_of(seed, "shuffle", name), device="cpu")
        moved[name] = mask.flatten()[order].view(mask.shape)
    return Masks(moved, masks.info, masks.weights)
