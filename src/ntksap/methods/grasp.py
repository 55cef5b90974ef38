"""GraSP (Wang et al., ICLR 2020)."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from ntksap.net import Net
from ntksap.probe import Batch, Probe


def grasp(
    net: Net,
    masks: Mapping[str, Tensor],
    probe: Probe,
    *,
    temperature: Annotated[float, "what logits are divided by before the loss"] = 200.0,
) -> dict[str, Tensor]:
    """Score a weight by what it adds to the gradient's norm: S = θ ⊙ (H g), keep the largest (signed).

    g = ∂L/∂w summed over all batches first, H the Hessian of the same loss on the same samples, so that H g is one
    Hessian–vector product per batch. The NTK-SAP paper prints the opposite sign; the method and its published code
    keep the largest θ ⊙ H g. BatchNorm normalises by the batch.
    """

    def loss(leaves: Mapping[str, Tensor], batch: Batch) -> Tensor:
        inputs, labels = batch
        return net.loss(net(leaves, inputs, norm="batch") / temperature, labels)

    def gradient(batch: Batch) -> dict[str, Tensor]:
        leaves = net.leaves(net.weights, masks)
        return net.gradient(loss(leaves, batch), leaves)

    def hessian_product(batch: Batch) -> dict[str, Tensor]:
        leaves = net.leaves(net.weights, masks)
        slope = net.gradient(loss(leaves, batch), leaves, create_graph=True)
        inner = torch.stack([(slope[name] * flow[name]).sum() for name in net.prunable]).sum()
        return net.gradient(inner, leaves)

    flow = probe.sum(gradient, probe.labelled())
    product = probe.sum(hessian_product, probe.labelled())
    return {name: net.weights[name] * product[name] for name in net.prunable}
