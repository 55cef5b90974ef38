"""Exact selection: which weights are kept, given their scores. Every method and schedule ends here."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ntksap._base import InputError, ScoreError
from ntksap.pruning.threshold import Bools, Floats, nth_largest


def select(
    scores: Mapping[str, Tensor],
    kept: int,
    *,
    within: Mapping[str, Tensor] | None = None,
    scope: str = "global",
    floor: int = 0,
) -> dict[str, Tensor]:
    """Return masks that keep exactly ``kept`` weights: those with the largest scores, ties to the lower index.

    Time grows linearly with the number of weights: they are counted, not sorted. Beside scores and masks, memory holds
    no more than another mask and, with ``within``, the scores that may be kept once more.

    Args:
        scores: {name: scores}, any shapes, finite.
        kept: how many weights to keep in all.
        within: {name: bool}, the weights that may be kept; all of them by default.
        scope: ``"global"`` ranks all weights together; ``"layer"`` ranks within each layer, which keeps its
            proportional share of ``kept`` (largest remainders, so that the sum is exact).
        floor: how many weights each layer keeps at least (fewer only where a layer has fewer).

    >>> select({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0, 2.0])}, 2)
    {'a': tensor([ True, False]), 'b': tensor([ True, False])}
    """
    if scope not in ("global", "layer"):
        raise InputError(f"scope is 'global' or 'layer', not {scope!r}")
    _check(scores)
    values = [_ranked(tensor) for tensor in scores.values()]
    free = [None if within is None else _flat(within[name]) for name in scores]
    room = [v.size if f is None else int(np.count_nonzero(f)) for v, f in zip(values, free, strict=True)]
    if not 1 <= kept <= sum(room):
        raise InputError(f"cannot keep {kept} of {sum(room)} weights")
    least = [min(floor, r) for r in room]
    if sum(least) > kept:
        raise InputError(f"a floor of {floor} weights per layer needs {sum(least)} weights, but only {kept} are kept")

    if scope == "layer":
        shares = _apportion(kept, [v.size for v in values], least, room)
        chosen = [_top([v], [f], share)[0] for v, f, share in zip(values, free, shares, strict=True)]
    elif floor == 0:
        chosen = _top(values, free, kept)
    else:
        chosen = [_top([v], [f], count)[0] for v, f, count in zip(values, free, least, strict=True)]
        rest = [~c if f is None else f & ~c for f, c in zip(free, chosen, strict=True)]
        chosen = [c | more for c, more in zip(chosen, _top(values, rest, kept - sum(least)), strict=True)]
    return {
        name: torch.from_numpy(c).view(tensor.shape) for (name, tensor), c in zip(scores.items(), chosen, strict=True)
    }


def _top(values: Sequence[Floats], free: Sequence[Bools | None], count: int) -> list[Bools]:
    """Mark the ``count`` largest free values of all arrays together; equal values go to the earlier place.

    ``free`` is None where all values of an array are free.
    """
    if count == 0:
        return [np.zeros(v.shape, np.bool_) for v in values]
    kind = np.result_type(*values)
    threshold = nth_largest([v.astype(kind, copy=False) for v in values], free, count)
    marks = [v > threshold for v in values]
    for f, m in zip(free, marks, strict=True):
        if f is not None:
            m &= f
    missing = count - sum(int(np.count_nonzero(m)) for m in marks)
    for v, f, m in zip(values, free, marks, strict=True):
        if missing == 0:
            break
        ties = np.flatnonzero(v == threshold if f is None else f & (v == threshold))[:missing]
        m[ties] = True
        missing -= ties.size
    return marks


def _apportion(kept: int, sizes: Sequence[int], least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Split ``kept`` in proportion to ``sizes``, each share between its least and its most, the sum exact."""
    quotas = np.array(sizes) * (kept / sum(sizes))
    lower, upper = np.array(least), np.array(most)
    shares = np.clip(np.floor(quotas).astype(np.int64), lower, upper)
    while (gap := kept - int(shares.sum())) != 0:
        # One more (or one less) for the layers that are furthest below (above) their quota and can still move.
        step = 1 if gap > 0 else -1
        movable = np.flatnonzero(shares < upper if step > 0 else shares > lower)
        order = movable[np.argsort(-step * (quotas - shares)[movable], kind="stable")]
        shares[order[: abs(gap)]] += step
    return [int(s) for s in shares]


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


def _ranked(scores: Tensor) -> Floats:
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    ranked: Floats = scores.detach().to("cpu", wide).contiguous().flatten().numpy()
    return ranked


def _flat(mask: Tensor) -> Bools:
    flat: Bools = mask.detach().cpu().contiguous().flatten().numpy()
    return flat
