"""Second-order saliency with Hutchinson's estimate of the Hessian's diagonal (CPAL 2026)."""

from collections.abc import Mapping
from itertools import chain, count, islice
from typing import Annotated

import torch
from torch import Tensor

from ntksap._base import Range
from ntksap.net import Net
from ntksap.pruning import Batch, Probe


def hutchinson(
    net: Net,
    masks: Mapping[str, Tensor],
    probe: Probe,
    *,
    probes: Annotated[int, "random sign vectors, each on a batch of its own", Range(1)] = 10,
    temperature: Annotated[float, "what logits are divided by before the loss", Range(above=0)] = 200.0,
) -> dict[str, Tensor]:
    """Score a weight by the loss to second order: S = |θ⊙g + ½ θ²⊙h|, h ≈ diag H, at w = θ⊙m.

    First one epoch of forward passes in train mode finds BatchNorm's statistics, the mean over its batches; they are
    constants from then on. Then, for each probe k = 1…K, with z_k of random signs and the k-th batch of the epoch
    (starting over when there are fewer): h = mean_k z_k ⊙ (H_k z_k), g = mean_k ∂L_k/∂w, L summed over samples.
    E[z ⊙ Hz] = diag H, and the graph of the gradient that H z needs gives g as well.
    """
    statistics = _statistics(net, masks, probe)
    epochs = chain.from_iterable(probe.epoch(index, labelled=True) for index in count())
    batches = list(enumerate(islice(epochs, probes)))

    def part(item: tuple[int, Batch]) -> dict[str, Tensor]:
        index, (inputs, labels) = item
        leaves = net.leaves(net.weights, masks)
        loss = net.loss(net(leaves, inputs, norm=statistics) / temperature, labels)
        slope = net.gradient(loss, leaves, create_graph=True)
        signs = {name: _signs(probe.generator("signs", index, name), leaves[name]) for name in net.prunable}
        product = net.gradient(torch.stack([(slope[n] * signs[n]).sum() for n in net.prunable]).sum(), leaves)
        found = {f"g/{name}": slope[name].detach() for name in net.prunable}
        return found | {f"h/{name}": signs[name] * product[name] for name in net.prunable}

    total = probe.sum(part, batches)
    scores = {}
    for name in net.prunable:
        theta, slope, curvature = net.weights[name], total[f"g/{name}"] / probes, total[f"h/{name}"] / probes
        scores[name] = (theta * slope + theta.square() * curvature / 2).abs()
    return scores


def _statistics(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Return BatchNorm's statistics, the mean over the batches of an epoch; nothing where there is no BatchNorm."""
    if not net.norm_buffers():
        return {}
    weights = {**net.weights, **{name: net.weights[name] * masks[name] for name in net.prunable}}
    sums: dict[str, Tensor] = {}
    seen = 0
    for inputs, _ in probe.epoch(0, labelled=True):
        found = net.statistics(weights, inputs)
        sums = {name: sums[name] + value if seen else value.clone() for name, value in found.items()}
        seen += 1
    return {name: value / seen if value.is_floating_point() else value for name, value in sums.items()}


def _signs(generator: torch.Generator, like: Tensor) -> Tensor:
    """Return random signs, drawn on the CPU so that the device cannot change them."""
    return (torch.randint(2, like.shape, generator=generator, device="cpu") * 2 - 1).to(like)
