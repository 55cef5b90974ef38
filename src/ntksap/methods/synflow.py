"""SynFlow (Tanaka et al., NeurIPS 2020)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ntksap._base import threads_for
from ntksap.net import Net
from ntksap.pruning import Probe


def synflow(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score a weight by the strength of the paths through it: S = |θ| ⊙ ∂R/∂|w|, R = Σ_k f_k(1; |θ|⊙m).

    One input of ones, every parameter replaced by its absolute value, BatchNorm in evaluation mode. All terms are
    positive, so float32 is as accurate as it can be, as long as its range suffices: on deep nets R exceeds 10³⁸. Where
    a score is not well inside that range, everything is computed again in float64.
    """
    with threads_for(net.weights):
        scores = _flow(net, masks, probe, net.dtype)
        if net.dtype != torch.float64 and net.device.type != "mps" and not _in_range(scores):
            scores = _flow(net, masks, probe, torch.float64)
    return scores


def _flow(net: Net, masks: Mapping[str, Tensor], probe: Probe, dtype: torch.dtype) -> dict[str, Tensor]:
    weights = {name: weight.abs().to(dtype) for name, weight in net.weights.items()}
    leaves = net.leaves(weights, masks)
    gradients = net.gradient(net(leaves, probe.ones(dtype)).sum(), leaves)
    return {name: (weights[name] * gradients[name]).abs() for name in net.prunable}


def _in_range(scores: Mapping[str, Tensor]) -> bool:
    """Whether every score is 0 or between 10⁻³⁰ and 10³⁰, and not all are 0."""
    every = torch.cat([score.flatten() for score in scores.values()])
    every = every.to(torch.promote_types(every.dtype, torch.float32))  # numpy has no bfloat16
    if not 0 < float(every.max()) <= 1e30:
        return False
    # As unsigned integers, floats from 0 upwards keep their order, and 0 − 1 is the largest of all: the least above 0.
    bits = every.cpu().numpy().view(f"u{every.itemsize}") - 1
    return float((bits.min() + 1).view(f"f{every.itemsize}")) >= 1e-30
