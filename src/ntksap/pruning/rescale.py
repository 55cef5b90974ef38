"""Rescaling: kept weights are multiplied once, so that outputs keep the variance that the initialiser intended."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from ntksap._base import unknown
from ntksap.net import weight_views

Rescale: TypeAlias = Literal["none", "layer", "unit"]
"""Not at all; by the density of the layer; by the density of each of its outputs."""


def rescale_named(rescale: bool | str) -> Rescale:
    """Return what ``rescale=`` means: True is ``"layer"``, False ``"none"``."""
    name = {True: "layer", False: "none"}[rescale] if isinstance(rescale, bool) else rescale
    if name not in get_args(Rescale):
        raise unknown("way to rescale", name, get_args(Rescale))
    return name  # type: ignore[return-value]


def scales_of(masks: Mapping[str, Tensor], module: nn.Module, rescale: Rescale) -> dict[str, Tensor]:
    """Return the factor for the kept weights of each layer: 1/√density, a number or a tensor like the mask.

    Pruning a layer to density d multiplies the variance of its outputs by d, for weights of mean 0. A layer (or an
    output) with nothing left has the factor 1.
    """
    scales = {}
    views = weight_views({name: tuple(mask.shape) for name, mask in masks.items()}, module)
    for name, mask in masks.items():
        if rescale == "none":
            scales[name] = torch.ones((), device="cpu")
            continue
        matrices = views[name].matrices(mask).double()
        density = matrices.mean() if rescale == "layer" else matrices.mean((0, 2), keepdim=True)
        scale = torch.where(density > 0, density, 1).rsqrt().float()
        scales[name] = scale if rescale == "layer" else views[name].tensor(scale.expand(matrices.shape)).contiguous()
    return scales
