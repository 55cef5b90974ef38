"""Random pruning."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ntksap.net import Net
from ntksap.pruning import Probe


def random(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score every weight uniformly in [0, 1): S ~ U(0, 1)."""
    return {
        name: torch.rand(
            net.weights[name].shape, generator=probe.generator("random", name), dtype=torch.float32, device="cpu"
        )
        for name in net.prunable
    }
