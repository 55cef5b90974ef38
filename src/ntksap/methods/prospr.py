"""ProsPr (Alizadeh et al., ICLR 2022)."""

from collections.abc import Mapping
from itertools import chain, count, islice
from typing import Annotated, TypeAlias

import torch
from torch import Tensor

from ntksap._base import Range
from ntksap.net import Net
from ntksap.pruning import Batch, Probe

Tensors: TypeAlias = Mapping[str, Tensor]


def prospr(
    net: Net,
    masks: Tensors,
    probe: Probe,
    *,
    inner_steps: Annotated[int, "steps of SGD to look ahead (M)", Range(0)] = 3,
    prune_lr: Annotated[float, "learning rate while pruning", Range(above=0)] = 0.1,
    prune_momentum: Annotated[float, "momentum while pruning", Range(0, below=1)] = 0.0,
    new_batches: Annotated[bool, "another batch for each step and for the final loss; else the first for all"] = True,
    first_order: Annotated[bool, "ignore how the steps depend on the weights: no Hessian"] = False,
) -> dict[str, Tensor]:
    """Score a weight by its effect on the loss after some steps of training: S = |∂L(w_M)/∂c| = |θ ⊙ λ₀|, w₀ = c⊙θ.

    M steps of SGD on all trainable parameters, pruned weights staying zero (P = m on prunable weights, 1 elsewhere):

        u_{k+1} = μ·u_k + ∇L_k(w_k),   w_{k+1} = w_k − α·P u_{k+1}

    and back through them by Hessian–vector products at the stored w_k, so that memory holds M copies of the weights
    and the graph of one loss, never the unrolled one:

        λ = ∇L_M(w_M), η = 0;   for k = M−1…0:   β = η − α·P λ,   λ ← λ + H_k β,   η ← μ·β

    First order: λ = ∇L_M(w_M) as it is. L is the mean over the samples of a batch; BatchNorm uses the statistics of the
    batch. Batches are the first of the epoch, starting over when there are fewer.
    """
    epochs = chain.from_iterable(probe.epoch(index, labelled=True) for index in count())
    batches = list(islice(epochs, inner_steps + 1 if new_batches else 1))
    batches *= (inner_steps + 1) // len(batches)
    names = tuple(dict.fromkeys((*net.trainable, *net.prunable)))
    free = {name: masks[name].to(net.weights[name].dtype) if name in masks else 1.0 for name in names}

    def gradient(weights: Tensors, batch: Batch, along: Tensors | None = None) -> dict[str, Tensor]:
        """∇L at the weights or, with ``along``, H·along."""
        leaves = {**weights, **{name: weights[name].detach().requires_grad_() for name in names}}
        wanted = [leaves[name] for name in names]
        inputs, labels = batch
        output = net(leaves, inputs, norm="batch")
        slope = torch.autograd.grad(
            net.loss(output, labels) / len(output), wanted, create_graph=along is not None, materialize_grads=True
        )
        if along is not None:
            inner = torch.stack([(g * along[name]).sum() for g, name in zip(slope, names, strict=True)]).sum()
            slope = torch.autograd.grad(inner, wanted, materialize_grads=True)
        return dict(zip(names, slope, strict=True))

    weights = {**net.weights, **{name: net.weights[name] * masks[name] for name in net.prunable}}
    speed = {name: torch.zeros_like(weights[name]) for name in names}
    path: list[dict[str, Tensor]] = []
    for batch in batches[:-1]:
        path.append(weights)
        slope = gradient(weights, batch)
        speed = {name: prune_momentum * speed[name] + slope[name] for name in names}
        weights = {**weights, **{name: weights[name] - prune_lr * free[name] * speed[name] for name in names}}

    by_weights = gradient(weights, batches[-1])
    by_speed = {name: torch.zeros_like(weights[name]) for name in names}
    for earlier, batch in [] if first_order else reversed(list(zip(path, batches[:-1], strict=True))):
        total = {name: by_speed[name] - prune_lr * free[name] * by_weights[name] for name in names}
        product = gradient(earlier, batch, along=total)
        by_weights = {name: by_weights[name] + product[name] for name in names}
        by_speed = {name: prune_momentum * total[name] for name in names}
    return {name: (net.weights[name] * by_weights[name]).abs() for name in net.prunable}
