"""Magnitude pruning at initialisation."""

from collections.abc import Mapping

from torch import Tensor

from ntksap.net import Net
from ntksap.pruning import Probe


def magnitude(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score a weight by its size: S = |θ|."""
    return {name: net.weights[name].abs() for name in net.prunable}
