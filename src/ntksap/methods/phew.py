"""PHEW, paths with higher edge weights (Patil and Dovrolis, ICML 2021)."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ntksap._base import InputError
from ntksap.compaction import Kernels, Step, read_steps
from ntksap.methods.phew_walks import Ints, Layer, Walks
from ntksap.net import Net, WeightView, weight_views
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
    views = weight_views({k.weight: tuple(net.weights[k.weight].shape) for k in layers.values()}, net._skeleton)
    sizes = {name: view.matrices(net.weights[name].detach().cpu().double().abs()) for name, view in views.items()}
    walks = Walks(steps, {number: Layer(k, sizes[k.weight].sum(0).numpy()) for number, k in layers.items()})
    met = {name: np.full(sizes[name][0].numel(), _NEVER) for name in net.prunable}  # when each kernel was first met
    kept = dict.fromkeys(met, 0)
    batch = 0
    while not selector.satisfied(kept, 1):
        before = sum(kept.values())
        for weight, kernels, when in _batch(walks, layers, probe, batch):
            if weight in met:
                np.minimum.at(met[weight], kernels, when)
        kept = {name: len(sizes[name]) * int((first < _NEVER).sum()) for name, first in met.items()}
        batch += 1
        if sum(kept.values()) - before < 2 * _BATCH / 100:
            break
    latest = 2.0 * _BATCH * batch * len(steps)
    return {name: _score(met[name], sizes[name], views[name], latest) for name in net.prunable}


def _steps(net: Net, probe: Probe) -> tuple[Step, ...]:
    """Return the steps of the module; `InputError` where a walk could not cross a prunable layer."""
    try:
        steps = read_steps(net._skeleton, probe.at(1).noise(0, 2), net._output)
    except InputError as error:
        raise InputError(f"phew walks along the module's graph, which cannot be read: {error}") from error
    crossed = {step.kernels.weight for step in steps if step.kernels is not None}
    if missing := [name for name in net.prunable if name not in crossed]:
        raise InputError(
            f"phew walks from layer to layer, and {', '.join(missing)} is not the weight of a convolution or linear "
            "layer that a signal passes through: exclude it, or use another method"
        )
    return steps


def _batch(walks: Walks, layers: dict[int, Kernels], probe: Probe, batch: int) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield (weight, kernels that walks take, when) for walks in both directions, which count as made in turn."""
    for side, forward in enumerate((True, False)):
        generator = probe.at(1).generator("walks", batch, side)
        uniform = torch.rand(_BATCH, walks.draws, generator=generator, dtype=torch.float64, device="cpu").numpy()
        for number, who, taken in walks.walk(uniform, forward=forward):
            along = number if forward else len(walks.steps) - 1 - number
            yield layers[number].weight, taken, (2 * (batch * _BATCH + who) + side) * len(walks.steps) + along


def _score(met: Ints, sizes: Tensor, view: WeightView, latest: float) -> Tensor:
    outputs, inputs = sizes.shape[1:]
    first = torch.from_numpy(met).view(outputs, inputs).expand(sizes.shape)
    others = sizes / (2 * sizes.max().clamp_min(torch.finfo(torch.float64).tiny))
    return view.tensor(torch.where(first < _NEVER, 2 - first.double() / latest, others))
