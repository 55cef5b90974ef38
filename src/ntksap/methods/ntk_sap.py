"""NTK-SAP (Wang, Li and Sun, ICLR 2023)."""

import math
from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ntksap._base import InputError, Range
from ntksap.net import Inputs, Net
from ntksap.pruning import Probe

Tensors = Mapping[str, Tensor]


def ntk_sap(
    net: Net,
    masks: Tensors,
    probe: Probe,
    *,
    draws: Annotated[int, "weight draws per round (R)", Range(1)] = 5,
    batch: Annotated[int, "inputs per draw", Range(1)] = 100,
    epsilon: Annotated[float, "variance of the weight perturbation Δ", Range(above=0)] = 1e-4,
    perturbations: Annotated[int, "perturbations Δ per draw", Range(1)] = 1,
    fresh_weights: Annotated[
        bool, "draw new weights each time; else the module's own weights (the paper's eq. 7)"
    ] = True,
    real_inputs: Annotated[bool, "use the batches of the data instead of noise"] = False,
    tangent: Annotated[bool, "use the exact tangent J·(Δ⊙m) in forward mode instead of the finite difference"] = False,
) -> dict[str, Tensor]:
    """Score a weight by its influence on the trace of the neural tangent kernel, in expectation over weights.

    Per draw i: weights θ from the initialiser, noise inputs z, perturbation Δ ~ N(0, ε) of the prunable weights, and

        L_i = Σ ‖f(z; θ⊙m) − f(z; (θ+Δ)⊙m)‖² ≈ ε · ‖∂f/∂w ⊙ m‖²_F
        S   = |Σ_i ∂L_i/∂m| = |Σ_i θ⊙g_a + (θ+Δ)⊙g_b|,   g = ∂L_i/∂w at the two effective weights.

    BatchNorm: one pass of the unperturbed net in training mode over all of z gives the statistics, which both passes
    use as constants, see `Net.statistics`.
    """
    if real_inputs and not probe.batches:
        raise InputError("real_inputs=True needs data=, an iterable of (inputs, labels) batches; labels may be None")

    def score_of_draw(index: int) -> dict[str, Tensor]:
        weights = net.draw(*probe.key("weights", index)) if fresh_weights else net.weights
        inputs = probe.batches[index % len(probe.batches)][0] if real_inputs else probe.noise(index, batch)
        statistics = net.statistics(net.leaves(weights, masks), inputs, kept=masks)
        probe.micro.fit(net, net.leaves(weights, masks), inputs, graphs=2)

        def score_of_perturbation(number: int) -> dict[str, Tensor]:
            generator = probe.generator("perturbation", index, number)
            delta = {name: _normal(weights[name], math.sqrt(epsilon), generator) for name in net.prunable}
            derivative = _tangent if tangent else _difference

            def over_slices(slices: list[Inputs]) -> dict[str, Tensor]:
                return probe.sum(lambda part: derivative(net, weights, delta, masks, part, statistics), slices)

            return probe.micro.run(over_slices, inputs)

        return probe.sum(score_of_perturbation, range(perturbations))

    return {name: total.abs() for name, total in probe.sum(score_of_draw, range(draws)).items()}


def _normal(like: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    """Return N(0, deviation²) in the shape, dtype and device of ``like``, the same numbers whatever these are."""
    return (torch.randn(like.shape, generator=generator, dtype=torch.float32, device="cpu") * deviation).to(like)


def _difference(
    net: Net, weights: Tensors, delta: Tensors, masks: Tensors, inputs: Inputs, statistics: Tensors
) -> dict[str, Tensor]:
    """∂/∂m Σ(f(θ⊙m) − f((θ+Δ)⊙m))². A sum of squares, not norm()**2, whose derivative is undefined at 0."""
    moved = {**weights, **{name: weights[name] + delta[name] for name in net.prunable}}
    here, there = net.leaves(weights, masks), net.leaves(moved, masks)
    first, second = (net(leaves, inputs, norm=statistics, kept=masks) for leaves in (here, there))
    loss = (first - second).square().sum()
    by_here, by_there = _both(net, loss, here, there)
    return {name: weights[name] * by_here[name] + moved[name] * by_there[name] for name in net.prunable}


def _tangent(
    net: Net, weights: Tensors, delta: Tensors, masks: Tensors, inputs: Inputs, statistics: Tensors
) -> dict[str, Tensor]:
    """∂/∂m ‖J·(Δ⊙m)‖², J = ∂f/∂w at w = θ⊙m: the limit of `_difference` for ε → 0, without cancellation."""
    here, along = net.leaves(weights, masks), net.leaves({name: delta[name] for name in net.prunable}, masks)
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(here[name], along[name]) for name in net.prunable}
        slope = forward_ad.unpack_dual(net({**here, **dual}, inputs, norm=statistics)).tangent
        if slope is None:  # nothing prunable reaches the output
            return {name: torch.zeros_like(weights[name]) for name in net.prunable}
        by_here, by_along = _both(net, slope.square().sum(), here, along)
    return {name: weights[name] * by_here[name] + delta[name] * by_along[name] for name in net.prunable}


def _both(net: Net, loss: Tensor, first: Tensors, second: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the derivatives of ``loss`` with respect to two sets of leaves from one backward pass."""
    leaves = [leaf[name] for leaf in (first, second) for name in net.prunable]
    gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
    half = len(net.prunable)
    return dict(zip(net.prunable, gradients[:half], strict=True)), dict(
        zip(net.prunable, gradients[half:], strict=True)
    )
