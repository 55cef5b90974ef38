"""Magnitude after one epoch of training (as in the FORCE paper, de Jorge et al., ICLR 2021)."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from ntksap._base import Range, ScoreError
from ntksap.net import Net
from ntksap.pruning import Probe


def mag_1epoch(
    net: Net,
    masks: Mapping[str, Tensor],
    probe: Probe,
    *,
    prune_lr: Annotated[float, "learning rate while pruning", Range(above=0)] = 0.1,
    prune_momentum: Annotated[float, "momentum while pruning", Range(0, below=1)] = 0.9,
    prune_weight_decay: Annotated[float, "weight decay while pruning", Range(0)] = 1e-4,
) -> dict[str, Tensor]:
    """Score a weight by its size after training the net for one epoch: S = |w|, w trained from θ⊙m.

    SGD on all trainable parameters, pruned weights staying zero, one step per batch: u ← μ·u + ∇L + ω·w, w ← w − α·u.
    L is the mean over the samples of a batch; BatchNorm uses the statistics of the batch, dropout is off. Only the mask
    is taken from the trained net: training proper starts from θ again. With more rounds, round t trains on epoch t, and
    this is iterative magnitude pruning with rewinding.
    """
    names = tuple(dict.fromkeys((*net.trainable, *net.prunable)))
    weights = {**net.weights, **{name: net.weights[name] * masks[name] for name in net.prunable}}
    speed = {name: torch.zeros_like(weights[name]) for name in names}
    for inputs, labels in probe.epoch(probe.round - 1, labelled=True):
        leaves = {**weights, **{name: weights[name].detach().requires_grad_() for name in names}}
        output = net(leaves, inputs, norm="batch")
        loss = net.loss(output, labels) / len(output)
        slope = torch.autograd.grad(loss, [leaves[name] for name in names], materialize_grads=True)
        if not torch.isfinite(loss):
            raise ScoreError(f"training diverged in the epoch before pruning: lower prune_lr (it is {prune_lr})")
        for name, gradient in zip(names, slope, strict=True):
            speed[name] = prune_momentum * speed[name] + gradient + prune_weight_decay * weights[name]
            step = speed[name] * masks[name] if name in masks else speed[name]
            weights[name] = weights[name] - prune_lr * step
    return {name: weights[name].abs() for name in net.prunable}
