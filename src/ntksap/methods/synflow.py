"""SynFlow (Tanaka et al., NeurIPS 2020)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ntksap.net import Net
from ntksap.probe import Probe


def synflow(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score a weight by the strength of the paths through it: S = |θ| ⊙ ∂R/∂|w|, R = Σ_k f_k(1; |θ|⊙m).

    One input of ones, every parameter replaced by its absolute value, BatchNorm in evaluation mode. On deep nets R
    passes 10³⁸, so all is computed in float64 where the device has it.
    """
    dtype = torch.float32 if net.device.type == "mps" else torch.float64
    weights = {name: weight.abs().to(dtype) for name, weight in net.weights.items()}
    leaves = net.leaves(weights, masks)
    gradients = net.gradient(net(leaves, probe.ones(dtype)).sum(), leaves)
    return {name: (weights[name] * gradients[name]).abs() for name in net.prunable}
