"""NTK-SAP in closed form with one number per layer: nothing grows with the number of weights."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from ntksap._base import InputError, threads_for
from ntksap.methods import moments
from ntksap.methods.moments import MomentTensor, Uniform, initial_moments, module_rules, trace_of
from ntksap.net import Net, map_tensors
from ntksap.pruning import Probe, Schedule, schedule_named

Reals = npt.NDArray[np.float64]


def layer_densities(
    net: Net,
    probe: Probe,
    density: float,
    *,
    rounds: int = 20,
    schedule: Schedule | None = None,
    least: Mapping[str, float] | None = None,
    rescale: bool = False,
) -> dict[str, float]:
    """Return the density of each layer, {name: d_l}, whose mean over all weights is ``density``.

    K is the expected trace of the neural tangent kernel (see `ntk_sap_analytic`) with every mask entry of layer l equal
    to d_l. From d_l = 1, in round t of T, with s_l = (∂ log K/∂d_l)/N_l, the score of each of the layer's N_l weights:

        d_l ← d_l · erfc(τ/(s_l √2)),   τ such that Σ_l N_l d_l = d^(t/T) · N

    which is the share of the weights with s_l·|ξ| > τ, ξ ~ N(0, 1): what `ntk_sap_analytic` keeps on average. With
    many rounds, scores change smoothly from one to the next, so after the third only every third computes them. The
    others extrapolate log s_l (see `_extrapolated`), which moves some 0.1 % of the kept weights of a CNN from one layer
    to another in 20 rounds, and up to 0.7 % in transformers without rescaling. With few rounds, each computes them.

    Args:
        net: a module whose weights are not looked at; they may be on the meta device.
        probe: the inputs, of which only the shapes matter.
        density: d.
        rounds, schedule: T, and the density after each round.
        least: {name: density}, the least that each layer keeps.
        rescale: kept weights have the variance σ²/d_l instead of σ², as they will where masks are attached with
            ``rescale=True``. Without it, what is removed from a residual branch lowers the scores of the rest.
    """
    schedule = schedule or schedule_named("exponential")
    sizes = np.array([math.prod(net.weights[name].shape) for name in net.prunable], np.float64)
    bound = np.array([(least or {}).get(name, 0.0) for name in net.prunable])
    scores = scores_of(net, probe, rescale=rescale)
    found = np.ones(len(sizes))
    known: dict[int, Reals] = {}
    with threads_for(net.weights), module_rules(net._skeleton):
        for index in range(1, rounds + 1):
            if rounds < _MANY or index <= 3 or index % 3 == 2:
                known[index] = scores(found) / sizes
            now = _extrapolated(known, index)
            found = _shrunk(found, now, sizes, np.minimum(bound, found), schedule(density, index, rounds))
    return dict(zip(net.prunable, found.tolist(), strict=True))


def scores_of(net: Net, probe: Probe, *, rescale: bool = False) -> Callable[[Reals], Reals]:
    """Return the function from the densities of all layers to ∂ log K/∂d_l, to be called inside `module_rules`.

    What is the same for all densities is computed once.
    """
    variances, fixed = initial_moments(net)
    others = {name: MomentTensor(known) for name, known in fixed.items()}
    shapes = [torch.empty(net.weights[name].shape, device="meta", dtype=torch.float64) for name in net.prunable]
    inputs = map_tensors(
        probe.ones(torch.float64), lambda t: MomentTensor(moments.noise(t)) if t.is_floating_point() else t
    )

    def scores(densities: Reals) -> Reals:
        leaves = torch.tensor(densities, dtype=torch.float64, requires_grad=True, device="cpu")
        scales = [
            variances[n] / (d if rescale and d > 0 else 1.0) for n, d in zip(net.prunable, densities, strict=True)
        ]
        kept = map(Uniform, leaves, shapes, torch.tensor(scales, dtype=torch.float64, device="cpu"))
        parameters = {**others, **dict(zip(net.prunable, map(MomentTensor, kept), strict=True))}
        trace = trace_of(net, parameters, inputs)
        if not trace.requires_grad or not float(trace.detach()) > 0:
            raise InputError("no prunable layer reaches the output, so the closed form cannot tell them apart")
        (gradient,) = torch.autograd.grad(trace.log(), leaves)
        return gradient.clamp_min(0).numpy()

    return scores


def _extrapolated(known: Mapping[int, Reals], index: int) -> Reals:
    """Return the scores of a round {index: s_l}, known or from the parabola through the last three known log s_l."""
    if index in known:
        return known[index]
    near = list(known)[-3:]
    last = known[near[-1]]
    change = np.zeros_like(last)
    for one in near:
        times = math.prod((index - other) / (one - other) for other in near if other != one)
        change += times * np.log(np.maximum(known[one], _LEAST) / np.maximum(last, _LEAST))
    now: Reals = last * np.exp(change.clip(-1, 1))  # a layer that is just being cut off may change by any factor
    return now


_MANY = 12
"""So many rounds are needed to extrapolate: in 8, more than 1 % of the kept weights of ResNet-20 would move."""

_LEAST = 1e-300
"""Where a score is 0, it stays 0."""


def _shrunk(
    densities: Reals,
    scores: Reals,
    sizes: Reals,
    bound: Reals,
    density: float,
) -> Reals:
    """Return max(bound, d_l · erfc(τ/(s_l √2))) with the τ that leaves this density, found by bisection."""
    wanted = density * sizes.sum()
    if wanted >= densities @ sizes:
        return densities

    def at(tau: float) -> Reals:
        ratio = torch.from_numpy(
            np.divide(tau, scores * math.sqrt(2), out=np.full_like(scores, 40.0), where=scores > 0)
        )
        left: Reals = np.maximum(bound, densities * torch.erfc(ratio).numpy())
        return left

    low, high = 0.0, float(scores.max()) * 40
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) @ sizes > wanted else (low, middle)
    return at(high)
