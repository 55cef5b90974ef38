"""PHEW, paths with higher edge weights (Patil and Dovrolis, ICML 2021)."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ntksap._base import ApproximationWarning, InputError, ScoreError
from ntksap.compaction import Kernels, Step, read_steps
from ntksap.methods.phew_walks import Ints, Layer, Walks, reaching
from ntksap.net import Net, WeightView
from ntksap.pruning import Masks, Probe, Selector, first_round

_BATCH = 256
"""Walks in each direction that are made at a time. It decides which draws a walk gets, so it is not an option."""
_NEVER = np.iinfo(np.int64).max


def phew(net: Net, probe: Probe, *, selector: Selector, invert: bool, after: Masks | None) -> Iterator[Masks]:
    """Keep the weights that random walks meet first, from inputs and outputs in turn.

    A unit is a channel; coupled channels are one unit. From a unit, a walk takes a kernel, the weights between two
    channels, in proportion to Σ|θ| over it, and with it all of its weights. Walks continue until there are enough
    weights, or until they find less than one new weight in a hundred walks; then the largest of the others fill the
    rest. All rounds cut the same walks.
    """
    scores = walk_scores(net, probe, selector)
    masks = after
    for index in range(first_round(selector.rounds, after), selector.rounds + 1):
        masks = selector.masks({n: -s if invert else s for n, s in scores.items()}, index, within=masks)
        masks.info |= {"round": index, "rounds": selector.rounds}
        yield masks


def walk_scores(net: Net, probe: Probe, selector: Selector) -> dict[str, Tensor]:
    """Return scores above 1 for weights that walks meet, the higher the earlier; below 1, by size, for others."""
    steps = _steps(net, probe)
    layers = {number: step.kernels for number, step in enumerate(steps) if step.kernels is not None}
    sizes = {k.weight: net.weights[k.weight].detach().cpu().double().abs() for k in layers.values()}
    _check(sizes)
    views = {number: _view(k, sizes[k.weight]) for number, k in layers.items()}
    summed = {number: views[number].matrices(sizes[k.weight]).sum(0).numpy() for number, k in layers.items()}
    useful = reaching(steps)
    walks = Walks(steps, {number: Layer(k, summed[number], useful[number]) for number, k in layers.items()})
    places = {number: _places(view) for number, view in views.items()}
    met = {name: np.full(_kernels(sizes[name]), _NEVER) for name in net.prunable}  # when each kernel was first met
    kept = dict.fromkeys(met, 0)
    batch = 0
    while not selector.satisfied(kept, 1):
        before = sum(kept.values())
        for weight, kernels, when in _batch(walks, layers, places, probe, batch):
            if weight in met:
                np.minimum.at(met[weight], kernels, when)
        kept = {name: sizes[name].numel() // len(first) * int((first < _NEVER).sum()) for name, first in met.items()}
        batch += 1
        if sum(kept.values()) - before < 2 * _BATCH / 100:
            break
    latest = 2.0 * _BATCH * batch * len(steps)
    return {name: _score(met[name], sizes[name], latest) for name in net.prunable}


def _steps(net: Net, probe: Probe) -> tuple[Step, ...]:
    """Return the steps of the module; `InputError` where a walk could not cross a prunable layer."""
    try:
        steps = read_steps(net._skeleton, probe.at(1).noise(0, 2), net._output)
    except InputError as error:
        raise InputError(f"phew walks along the module's graph, which cannot be read: {error}") from error
    if lost := sorted({step.loses for step in steps if step.loses}):
        warnings.warn(
            f"phew cannot follow channels through {', '.join(lost)}: walks continue from any channel there, so weights "
            "that lie on no path may be kept; ntksap.diagnose counts them",
            ApproximationWarning,
            stacklevel=2,
        )
    crossed = {step.kernels.weight for step in steps if step.kernels is not None}
    if missing := [name for name in net.prunable if name not in crossed]:
        raise InputError(
            f"phew walks from layer to layer, and {', '.join(missing)} is not the weight of a convolution or linear "
            "layer that a signal passes through: exclude it, or use another method"
        )
    return steps


def _check(sizes: dict[str, Tensor]) -> None:
    for name, size in sizes.items():
        if not size.isfinite().all():
            raise ScoreError(f"the weights of {name!r} are NaN or infinite, so walks cannot choose among them")


def _view(kernels: Kernels, weight: Tensor) -> WeightView:
    """Return how a layer reads its weight, whichever module owns that."""
    return WeightView(tuple(weight.shape), kernels.groups if kernels.inputs_first else 0)


def _kernels(weight: Tensor) -> int:
    return weight.shape[0] * weight.shape[1]


def _places(view: WeightView) -> Ints:
    """Return for each connection of a layer, o·I + i, its kernel's place in the first two dimensions of the weight."""
    first = torch.arange(view.shape[0] * view.shape[1], device="cpu").view(view.shape[:2])
    places: Ints = replace(view, shape=view.shape[:2]).matrices(first).reshape(-1).numpy()
    return places


def _batch(
    walks: Walks, layers: dict[int, Kernels], places: dict[int, Ints], probe: Probe, batch: int
) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield (weight, kernels that walks take, when) for walks in both directions, which count as made in turn."""
    for side, forward in enumerate((True, False)):
        generator = probe.at(1).generator("walks", batch, side)
        uniform = torch.rand(_BATCH, walks.draws, generator=generator, dtype=torch.float64, device="cpu").numpy()
        for number, who, taken in walks.walk(uniform, forward=forward):
            along = number if forward else len(walks.steps) - 1 - number
            when = (2 * (batch * _BATCH + who) + side) * len(walks.steps) + along
            yield layers[number].weight, places[number][taken], when


def _score(met: Ints, sizes: Tensor, latest: float) -> Tensor:
    first = torch.from_numpy(met).view(*sizes.shape[:2], *[1] * (sizes.dim() - 2)).expand(sizes.shape)
    others = sizes / (2 * sizes.max().clamp_min(torch.finfo(torch.float64).tiny))
    return torch.where(first < _NEVER, 2 - first.double() / latest, others)
