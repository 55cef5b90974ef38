"""Exact selection: which weights are kept, given their scores. Every method and schedule ends here."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ntksap._base import InputError, ScoreError
from ntksap.net import WeightView
from ntksap.pruning.allocation import Floor, floor_of
from ntksap.pruning.apportion import apportion
from ntksap.pruning.group_selection import select_groups, views_for
from ntksap.pruning.patterns import Cap, Channel, Pattern, Tie
from ntksap.pruning.threshold import Bools, Floats, flat, ranked, top


def select(
    scores: Mapping[str, Tensor],
    kept: int,
    *,
    within: Mapping[str, Tensor] | None = None,
    scope: str = "global",
    floor: Floor = 0,
    counts: Mapping[str, int] | None = None,
    pattern: Pattern | Channel | None = None,
    views: Mapping[str, WeightView] | None = None,
    loose: bool = False,
) -> dict[str, Tensor]:
    """Return masks that keep exactly ``kept`` weights: those with the largest scores, ties to the lower index.

    Time grows linearly with the number of weights: they are counted, not sorted. Apart from scores and masks, memory
    holds no more than another mask and, with ``within``, a copy of the scores that may be kept.

    With a pattern, the nearest number that it allows is kept: scores are summed over weights that are tied together,
    and of weights that exclude each other the largest are kept.

    Args:
        scores: {name: scores}, any shapes, finite.
        kept: how many weights to keep in all.
        within: {name: bool}, the weights that may be kept; all of them by default.
        scope: ``"global"`` ranks all weights together; ``"layer"`` ranks within each layer, which keeps its
            proportional share of ``kept`` (largest remainders, so that the sum is exact).
        floor: the least that each layer keeps, a number of weights or a share of them (less only in smaller layers).
        counts: {name: kept}, how many weights each layer keeps; ``kept``, ``scope`` and ``floor`` then do not matter.
        pattern, views: which weights are tied together or exclude each other, and how each weight is laid out; by
            default outputs come first.
        loose: a pattern that caps may be exceeded where ``kept`` asks for it: before the last round. What it allows is
            kept first, so that a later selection can still obey.

    >>> select({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0, 2.0])}, 2)
    {'a': tensor([ True, False]), 'b': tensor([ True, False])}
    """
    if scope not in ("global", "layer"):
        raise InputError(f"scope is 'global' or 'layer', not {scope!r}")
    if isinstance(pattern, Channel):
        raise InputError("channels span several layers: ntksap.prune(…, pattern='channel') selects them")
    _check(scores)
    if isinstance(pattern, Tie):
        return select_groups(scores, kept, within, scope, floor, counts, pattern, views)
    values = [ranked(tensor) for tensor in scores.values()]
    free = [None if within is None else flat(within[name]) for name in scores]
    tiers: list[Sequence[Bools | None]] = [free]
    if pattern is not None:  # first those that may be kept together, then the others
        allowed = [
            _allowed(pattern, view, scores[name], f)
            for (name, view), f in zip(views_for(scores, views), free, strict=True)
        ]
        others = [~c if f is None else f & ~c for f, c in zip(free, allowed, strict=True)]
        tiers = [allowed, others] if loose else [allowed]
        if not loose:
            kept = min(kept, sum(int(np.count_nonzero(c)) for c in allowed))
            free = list(allowed)
    room = [v.size if f is None else int(np.count_nonzero(f)) for v, f in zip(values, free, strict=True)]
    if counts is None and not 1 <= kept <= sum(room):
        raise InputError(f"cannot keep {kept} of {sum(room)} weights")
    least = [min(floor_of(floor, v.size), r) for v, r in zip(values, room, strict=True)]
    if counts is None and sum(least) > kept:
        raise InputError(f"a floor of {floor} weights per layer needs {sum(least)} weights, but only {kept} are kept")

    if counts is not None:
        shares = [min(counts[name], r) for name, r in zip(scores, room, strict=True)]
    elif scope == "layer":
        shares = apportion(kept, [v.size for v in values], least, room)
    else:
        shares = least
    chosen = [np.zeros(v.shape, np.bool_) for v in values]
    for index, (v, share) in enumerate(zip(values, shares, strict=True)):
        for tier in tiers:
            chosen[index] = _more([v], [chosen[index]], [tier[index]], share)[0]
    if counts is None and scope == "global":
        for tier in tiers:
            chosen = _more(values, chosen, tier, kept)
    return {
        name: torch.from_numpy(c).view(tensor.shape) for (name, tensor), c in zip(scores.items(), chosen, strict=True)
    }


def _more(values: Sequence[Floats], chosen: list[Bools], free: Sequence[Bools | None], count: int) -> list[Bools]:
    """Choose the largest free values until ``count`` are chosen, or nothing is free."""
    has = [int(np.count_nonzero(c)) for c in chosen]
    if sum(has) >= count:
        return chosen
    if any(has):
        free = [~c if f is None else f & ~c for f, c in zip(free, chosen, strict=True)]
    room = sum(v.size if f is None else int(np.count_nonzero(f)) for v, f in zip(values, free, strict=True))
    more = top(values, free, min(count - sum(has), room))
    return [c | m for c, m in zip(chosen, more, strict=True)] if any(has) else more


def _allowed(pattern: Cap, view: WeightView, scores: Tensor, free: Bools | None) -> Bools:
    ranked = view.matrices(scores.detach().cpu())
    open_ = (
        torch.ones(scores.shape, dtype=torch.bool, device="cpu")
        if free is None
        else torch.from_numpy(free).view(scores.shape)
    )
    return flat(view.tensor(pattern.candidates(ranked, view.matrices(open_))))


def _check(scores: Mapping[str, Tensor]) -> None:
    # The extremes are NaN or infinite if anything is, and are found in a tenth of the time that isfinite takes.
    extremes = [value for tensor in scores.values() if tensor.numel() for value in tensor.aminmax()]
    if not extremes or torch.stack(extremes).isfinite().all():
        return
    name, bad, tensor = next((n, int(b), t) for n, t in scores.items() if (b := (~torch.isfinite(t)).sum()))
    remedy = (
        "they overflow float64, so the net is too deep or its weights are too large for this method"
        if tensor.dtype == torch.float64
        else "pass precision='float64' (--precision float64)"
    )
    raise ScoreError(f"layer {name!r}: {bad} of {tensor.numel()} scores are NaN or infinite; {remedy}")
