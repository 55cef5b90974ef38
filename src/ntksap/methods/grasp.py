"""GraSP (Wang et al., ICLR 2020)."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from ntksap._base import Range
from ntksap.net import Net
from ntksap.pruning import Batch, Probe


def grasp(
    net: Net,
    masks: Mapping[str, Tensor],
    probe: Probe,
    *,
    temperature: Annotated[float, "what logits are divided by before the loss", Range(above=0)] = 200.0,
) -> dict[str, Tensor]:
    """Score a weight by what it adds to the gradient's norm: S = θ ⊙ (H g), keep the largest (signed).

    g = ∂L/∂w summed over all batches first, H the Hessian of the same loss on the same samples, so that H g is one
    Hessian–vector product per batch; a single batch's graph of g serves H g as well. The NTK-SAP paper prints the
    opposite sign; the method and its published code keep the largest θ ⊙ H g. BatchNorm uses the batch's statistics.
    """
    leaves = net.leaves(net.weights, masks)

    def gradient(batch: Batch, *, create_graph: bool = False) -> dict[str, Tensor]:
        inputs, labels = batch
        loss = net.loss(net(leaves, inputs, norm="batch") / temperature, labels)
        return net.gradient(loss, leaves, create_graph=create_graph)

    def hessian_product(slope: Mapping[str, Tensor], flow: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return net.gradient(torch.stack([(slope[n] * flow[n]).sum() for n in net.prunable]).sum(), leaves)

    batches = probe.labelled()
    if len(batches) == 1:
        slope = gradient(batches[0], create_graph=True)
        product = hessian_product(slope, {name: value.detach() for name, value in slope.items()})
    else:
        flow = probe.sum(gradient, batches)
        product = probe.sum(lambda batch: hessian_product(gradient(batch, create_graph=True), flow), batches)
    return {name: net.weights[name] * product[name] for name in net.prunable}
