"""NTT, Neural Tangent Transfer (Liu and Zenke, ICML 2020)."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Literal

import torch
from torch import Tensor

from ntksap._base import Range, ScoreError
from ntksap.methods.ntt_kernel import Halves, exact_fits, kernel_gap
from ntksap.net import Net
from ntksap.pruning import Masks, Probe, Selector, first_round

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what torch's Adam keeps for each tensor


def ntt(
    net: Net,
    probe: Probe,
    *,
    selector: Selector,
    invert: bool,
    after: Masks | None,
    kernel_weight: Annotated[float, "weight of the kernel's distance in the loss (λ_k)", Range(0)] = 1e-3,
    l2: Annotated[
        float, "weight of the kept weights' squares, divided by the density (λ_2); 1e-4 for an MLP", Range(0)
    ] = 1e-5,
    prune_lr: Annotated[float, "learning rate while pruning", Range(above=0)] = 5e-4,
    refresh: Annotated[int, "steps after which the mask is chosen again", Range(1)] = 100,
    epoch_steps: Annotated[int, "most steps per round; 0: one for each batch of the data", Range(0)] = 0,
    kernel: Annotated[
        Literal["auto", "exact", "projected"], "the whole kernel, random projections of it, or the one that fits"
    ] = "auto",
    projections: Annotated[int, "random projections of the kernel on either side, where it is projected", Range(1)] = 8,
) -> Iterator[Masks]:
    """Choose mask and weights of a sparse student whose outputs and tangent kernel are those of the dense net.

    The student starts at the teacher θ_T, the module's own weights. Its mask keeps the largest |θ|, by default within
    each layer. A round is one epoch; each batch, in halves x₁ and x₂, is one step of Adam on

        λ_k · mean((Θ_s − Θ_T)²) + mean((f_s − f_T)²) + (λ_2/d) · ‖m⊙θ‖²,   Θ = J(x₁) diag(m) J(x₂)ᵀ.

    J is taken with respect to all trainable parameters, of which m prunes the prunable ones. BatchNorm: both nets use
    the teacher's statistics on the batch, as constants. The mask is chosen again every ``refresh`` steps, except in the
    last round, so that the weights settle. The masks come with the student's weights, and with the distance
    ‖Θ_s − Θ_T‖ / ‖Θ_T‖ on the first batch before and after.
    """
    rounds, density = selector.rounds, selector.density
    begin = first_round(rounds, after)
    names = tuple(dict.fromkeys((*net.trainable, *net.prunable)))
    start = after.weights if after else net.weights
    student = {name: start[name].to(net.weights[name], copy=True).requires_grad_() for name in names}
    adam = torch.optim.Adam(student.values(), prune_lr)
    if after:
        for name, tensor in student.items():
            adam.state[tensor] = {key: after.state[f"{key}/{name}"].to(tensor.device, copy=True) for key in _MOMENTS}

    def largest(weights: Mapping[str, Tensor], round: int) -> Masks:
        sign = -1 if invert else 1
        return selector.masks({name: sign * weights[name].detach().abs() for name in net.prunable}, round)

    def masked(weights: Mapping[str, Tensor], masks: Masks) -> dict[str, Tensor]:
        there = masks.to(net.device)
        return {**net.weights, **{n: weights[n] * there[n] if n in there else weights[n] for n in names}}

    first = Halves.of(net, next(probe.epoch(0, labelled=False))[0])
    first.check(net)
    exact = kernel == "exact" or (kernel == "auto" and exact_fits(net, names, first))

    def draw(*key: int | str) -> torch.Generator | None:
        return None if exact else probe.generator("projection", *key)

    def distance(weights: Mapping[str, Tensor], masks: Masks) -> float:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in masked(weights, masks).items()}
        apart, size = kernel_gap(net, names, leaves, masks, first, projections, draw("distance"), graph=False)
        return float((apart / size).sqrt())

    before = largest(net.weights, 1)
    facts = {"kernel": "exact" if exact else f"projected {projections} times", "kernel_rows": first.rows}
    facts["kernel_distance_before"] = distance(net.weights, before)
    masks = after or before
    count = int(after.state[f"step/{names[0]}"]) if after else 0
    for index in range(begin, rounds + 1):
        if selector.kept(index) != selector.kept(max(index - 1, 1)):
            masks = largest(student, index)
        for inputs, _ in islice(probe.epoch(index - 1, labelled=False), epoch_steps or None):
            batch = Halves.of(net, inputs)
            weights = masked(student, masks)
            apart, _ = kernel_gap(net, names, weights, masks, batch, projections, draw(index, count), graph=True)
            outputs = (net(weights, batch.whole, norm=batch.norm) - batch.teacher).square().mean()
            size = torch.stack([weights[name].square().sum() for name in net.prunable]).sum()
            loss = kernel_weight * apart + outputs + l2 / density * size
            if not torch.isfinite(loss):
                raise ScoreError(f"NTT diverged at step {count + 1}: lower kernel_weight or prune_lr ({prune_lr})")
            adam.zero_grad()
            loss.backward()
            for tensor in student.values():
                if tensor.grad is None:  # the output does not depend on it; Adam would keep no state
                    tensor.grad = torch.zeros_like(tensor)
            adam.step()
            count += 1
            if count % refresh == 0 and index < rounds:
                masks = largest(student, index)
        distances = {"kernel_distance": distance(student, masks), "steps": count}
        yield Masks(
            masks,
            {**facts, **distances, "round": index, "rounds": rounds},
            weights={name: tensor.detach().clone() for name, tensor in student.items()},
            state={f"{k}/{n}": adam.state[t][k].detach().clone() for n, t in student.items() for k in _MOMENTS},
        )
