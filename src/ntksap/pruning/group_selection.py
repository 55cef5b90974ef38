"""Selection of whole groups of weights, see `ntksap.pruning.patterns.Tie`."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ntksap._base import InputError
from ntksap.net import WeightView
from ntksap.pruning.allocation import Floor, floor_of
from ntksap.pruning.apportion import apportion
from ntksap.pruning.patterns import Groups, Tie
from ntksap.pruning.threshold import Bools, flat, ranked, top


def select_groups(
    scores: Mapping[str, Tensor],
    kept: int,
    within: Mapping[str, Tensor] | None,
    scope: str,
    floor: Floor,
    counts: Mapping[str, int] | None,
    pattern: Tie,
    views: Mapping[str, WeightView] | None,
) -> dict[str, Tensor]:
    """Select whole groups, otherwise like `select`: the number of weights is as near to ``kept`` as groups allow."""
    found: list[Groups] = []
    units: list[int] = []
    for name, view in views_for(scores, views):
        free = torch.ones(view.shape, dtype=torch.bool, device="cpu") if within is None else within[name].cpu()
        found.append(pattern.groups(view, view.matrices(scores[name].detach().cpu()), view.matrices(free)))
        units.append(pattern.unit(view))
    there = [int((groups.sizes > 0).sum()) for groups in found]
    room = [int(groups.sizes.sum()) for groups in found]
    if within is not None:  # an earlier round may have left a little less, if that was nearer
        kept = min(kept, sum(room))
    if counts is None and not 1 <= kept <= sum(room):
        raise InputError(f"cannot keep {kept} of {sum(room)} weights")
    if scope == "layer" and counts is None:
        shares = apportion(kept, [tensor.numel() for tensor in scores.values()], [0] * len(room), room)
        counts = dict(zip(scores, shares, strict=True))
    nothing = [np.zeros(len(groups.scores), np.bool_) for groups in found]
    if counts is not None:
        whole = whole_groups([counts[name] for name in scores], units, there)
        chosen: list[Bools] = []
        for groups, none, name, number, unit in zip(found, nothing, scores, whole, units, strict=True):
            # groups at the edges may be smaller: then weights are counted, not groups
            even = bool(((groups.sizes == unit) | (groups.sizes == 0)).all())
            count = number * unit if even else counts[name]
            chosen += _nearest([groups], [none], count) if count else [none]
    else:
        least = [
            -(-floor_of(floor, tensor.numel()) // unit) for tensor, unit in zip(scores.values(), units, strict=True)
        ]
        chosen = [
            top([ranked(groups.scores)], [flat(groups.sizes > 0)], min(number, n))[0]
            for groups, number, n in zip(found, least, there, strict=True)
        ]
        chosen = _nearest(found, chosen, kept)
    masks = [groups.mask(torch.from_numpy(c)) for groups, c in zip(found, chosen, strict=True)]
    return dict(zip(scores, masks, strict=True))


def _nearest(found: Sequence[Groups], chosen: Sequence[Bools], kept: int) -> list[Bools]:
    """Choose more groups, the largest scores first, until the number of weights is nearest to ``kept``."""
    values = np.concatenate([ranked(groups.scores).astype(np.float64) for groups in found])
    sizes = np.concatenate([groups.sizes.numpy() for groups in found])
    marks = np.concatenate(chosen)
    free = np.flatnonzero(~marks & (sizes > 0))
    order = free[np.argsort(-values[free], kind="stable")]
    reached = int(sizes[marks].sum()) + np.concatenate([[0], np.cumsum(sizes[order])])
    count = int(np.argmin(np.abs(reached - kept)))
    count = max(count, int(not marks.any()))  # never nothing at all
    marks[order[:count]] = True
    ends = np.cumsum([len(groups.scores) for groups in found])[:-1]
    return list(np.split(marks, ends))


def whole_groups(counts: Sequence[int], units: Sequence[int], most: Sequence[int]) -> list[int]:
    """Return how many groups of ``units`` weights come nearest to ``counts`` weights, layer by layer and in the sum.

    Rounded down, then one more each for the largest remainders while that brings the sum nearer; at least one where
    any weight is kept, at most ``most``.

    >>> whole_groups([10, 10, 4], [4, 4, 4], [9, 9, 9])
    [3, 2, 1]
    """
    exact = [count / unit if unit else 0.0 for count, unit in zip(counts, units, strict=True)]
    whole = [min(m, max(math.floor(e + 1e-9), int(c > 0))) for e, c, m in zip(exact, counts, most, strict=True)]
    missing = sum(counts) - sum(w * u for w, u in zip(whole, units, strict=True))
    for index in sorted(range(len(whole)), key=lambda i: (whole[i] - exact[i], i)):
        if exact[index] > whole[index] and whole[index] < most[index] and abs(missing - units[index]) < abs(missing):
            whole[index] += 1
            missing -= units[index]
    return whole


def views_for(scores: Mapping[str, Tensor], views: Mapping[str, WeightView] | None) -> list[tuple[str, WeightView]]:
    """Return the view of each layer; by default outputs come first."""
    return [(name, (views or {}).get(name) or WeightView(tuple(tensor.shape))) for name, tensor in scores.items()]
