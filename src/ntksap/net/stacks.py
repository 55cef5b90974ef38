"""Experts that are stacked in one tensor, each as a layer of its own: ``"experts.up"`` is ``"experts.up[0]"``, …"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ntksap.net.weight_views import WeightView


def apart(views: Mapping[str, WeightView]) -> dict[str, WeightView]:
    """Return the views of all layers, with one for each expert.

    >>> list(apart({"up": WeightView((2, 6, 4), stack=True), "out": WeightView((3, 6))}))
    ['up[0]', 'up[1]', 'out']
    """
    return {
        part: WeightView(view.shape[1:], view.inputs_first) if view.stack else view
        for name, view in views.items()
        for part in parts_of(name, view)
    }


def parts_of(name: str, view: WeightView) -> list[str]:
    """Return the names of the layers that a weight holds: its own, or one for each expert."""
    return [f"{name}[{index}]" for index in range(view.shape[0])] if view.stack else [name]


def split(tensors: Mapping[str, Tensor], views: Mapping[str, WeightView]) -> dict[str, Tensor]:
    """Return the tensor of each layer; those of experts are views of a slice."""
    return {
        part: one
        for name, view in views.items()
        for part, one in zip(
            parts_of(name, view), tensors[name].unbind() if view.stack else [tensors[name]], strict=True
        )
    }


def join(parts: Mapping[str, Tensor], views: Mapping[str, WeightView]) -> dict[str, Tensor]:
    """Return the tensors that `split` came from."""
    found = {name: [parts[part] for part in parts_of(name, view)] for name, view in views.items()}
    return {name: torch.stack(own) if views[name].stack else own[0] for name, own in found.items()}
