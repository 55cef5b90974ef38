"""SNIP (Lee et al., ICLR 2019); with rounds, Iterative SNIP; with regrowth, FORCE (de Jorge et al., ICLR 2021)."""

from collections.abc import Mapping

from torch import Tensor

from ntksap.net import Net
from ntksap.pruning import Batch, Probe


def snip(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score a weight by how much the loss changes with its mask: S = |∂L/∂m| = |θ ⊙ ∂L/∂w|, w = θ⊙m.

    L is summed over the labelled batches; BatchNorm uses the statistics of the batch. Signed gradients are added over
    batches before the absolute value is taken.
    """
    return _scores(net, masks, probe, kept=masks)


def force(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score as `snip` does, pruned weights as well, so that they can come back."""
    return _scores(net, masks, probe, kept=None)


def _scores(
    net: Net, masks: Mapping[str, Tensor], probe: Probe, kept: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    def gradient(batch: Batch) -> dict[str, Tensor]:
        inputs, labels = batch
        leaves = net.leaves(net.weights, masks)
        return net.gradient(net.loss(net(leaves, inputs, norm="batch", kept=kept), labels), leaves)

    total = probe.sum(gradient, probe.labelled())
    return {name: (net.weights[name] * total[name]).abs() for name in net.prunable}
