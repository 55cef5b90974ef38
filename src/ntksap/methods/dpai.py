"""DPaI, differentiable pruning at initialisation by node–path balance (Xiang et al., ICLR 2025)."""

import warnings
from collections.abc import Iterator
from typing import Annotated

import torch
from torch import Tensor

from ntksap._base import ApproximationWarning, CollapseWarning, Range
from ntksap.methods.dpai_paths import curved, objective
from ntksap.net import Net, WeightView
from ntksap.pruning import Masks, Probe, Selector, first_round

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what torch's Adam keeps for each tensor


def dpai(
    net: Net,
    probe: Probe,
    *,
    selector: Selector,
    invert: bool,
    after: Masks | None,
    round_steps: Annotated[int, "steps of Adam on the scores in each round", Range(1)] = 150,
    prune_lr: Annotated[float, "learning rate while pruning", Range(above=0)] = 5e-3,
    alpha: Annotated[float, "share of a step that goes to units and kernels without paths (α)", Range(0, 1)] = 0.99,
    beta: Annotated[float, "share of that which goes to kernels, the rest to units (β)", Range(0, 1)] = 0.5,
) -> Iterator[Masks]:
    """Choose the mask whose network has many paths from input to output, and many units and kernels on them.

    Scores s ~ N(0, 1); the mask m keeps the largest |s|, by default in the layers' ERK quotas. The derivative
    g = ∂log P/∂m is taken straight through the selection. Each step of Adam, whose rate is halved at ½ and ¾ of all
    steps, ascends along sign(s) times

        (1 − α)·g + α·[(1 − β)·g·1(unit dead) + β·g·1(kernel dead)].

    P is the sum of the outputs with m as the weights, an input of ones, no biases, and activations, norms and a softmax
    of the output as the identity, where the input x of each linear layer and convolution is divided by max x, and P
    multiplied by it.
    Without residual connections the two cancel: P is the number of paths. With them, a branch counts for what it adds
    to its shortcut after these divisions.

    An output of a layer is dead if no path enters it by way of that layer, a kernel if none goes through it.
    """
    rounds, steps = selector.rounds, selector.rounds * round_steps
    begin = first_round(rounds, after)
    dtype = torch.float32 if net.device.type == "mps" else torch.float64
    scores = {name: _drawn(probe, name, net, dtype) for name in net.prunable}
    adam = torch.optim.Adam(scores.values(), prune_lr)
    if after:
        for name, tensor in scores.items():
            tensor.data.copy_(after.state[f"score/{name}"])
            if f"step/{name}" in after.state:
                adam.state[tensor] = {k: after.state[f"{k}/{name}"].to(tensor.device, copy=True) for k in _MOMENTS}

    if begin <= rounds:
        _warn_of(curved(net, probe, dtype))

    def largest(round: int, sign: int = 1) -> Masks:
        return selector.masks({name: sign * tensor.detach().abs() for name, tensor in scores.items()}, round)

    for index in range(begin, rounds + 1):
        for step in range(round_steps * (index - 1), round_steps * index):
            kept = largest(index).to(net.device)
            _, slope = objective(net, kept, probe, dtype)
            adam.param_groups[0]["lr"] = prune_lr * 0.5 ** ((2 * step >= steps) + (4 * step >= 3 * steps))
            for name, tensor in scores.items():
                ascent = direction(slope[name], kept[name], selector.views[name], alpha, beta)
                tensor.grad = -tensor.detach().sign() * ascent
            adam.step()
        masks = largest(index, -1 if invert else 1)
        reached, _ = objective(net, masks.to(net.device), probe, dtype)
        if reached is None and index == rounds:
            _report_no_path()
        masks.info |= {"round": index, "rounds": rounds, "objective": reached}
        masks.state = {f"score/{name}": tensor.detach().cpu().clone() for name, tensor in scores.items()}
        masks.state |= {f"{k}/{n}": v.cpu().clone() for n, t in scores.items() for k, v in adam.state[t].items()}
        yield masks


def direction(slope: Tensor, mask: Tensor, view: WeightView, alpha: float, beta: float) -> Tensor:
    """Return (1 − α)·g + α·[(1 − β)·g·1(unit dead) + β·g·1(kernel dead)] in the shape of the weight."""
    g = view.matrices(slope)
    through = g.abs() * view.matrices(mask)  # 0 where no path leads
    entering, _ = view.unit_sums(through)
    kernels = through if view.stack else through.sum(0)
    return view.tensor(g * ((1 - alpha) + alpha * ((1 - beta) * (entering <= 0) + beta * (kernels <= 0))))


def _drawn(probe: Probe, name: str, net: Net, dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(
        net.weights[name].shape, generator=probe.at(1).generator("score", name), dtype=torch.float64, device="cpu"
    )
    return drawn.to(net.device, dtype).requires_grad_()


def _warn_of(functions: list[str]) -> None:
    if functions:
        warnings.warn(
            "dpai counts the paths of a net without its activations and norms, and this one computes with "
            f"{', '.join(functions)}, which stay: its objective is only approximate here. An activation or norm of "
            "your own is left out if it is a module whose class name says so (…Norm, …Activation)",
            ApproximationWarning,
            stacklevel=3,
        )


def _report_no_path() -> None:
    warnings.warn(
        "dpai has found no path from input to output, so the pruned network computes a constant. Lower the sparsity, "
        "use another method, or take more steps (round_steps=)",
        CollapseWarning,
        stacklevel=3,
    )
