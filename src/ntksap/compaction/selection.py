"""Which channels are kept, given a score for each weight: the pattern ``channel`` on plain values."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ntksap._base import InputError, ScoreError
from ntksap.compaction.groups import ChannelGroups


def channel_scores(groups: ChannelGroups, scores: Mapping[str, Tensor]) -> list[Tensor]:
    """Return a score for each unit of each group: the sum over all weights that would go with it.

    Args:
        groups: the coupled channel groups.
        scores: {parameter: scores of its shape}; parameters without scores count nothing.

    >>> import torch
    >>> from torch import nn
    >>> from ntksap.compaction import channel_groups
    >>> groups = channel_groups(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), torch.ones(1, 1))
    >>> channel_scores(groups, {"0.weight": torch.tensor([[1.0], [2.0]]), "1.weight": torch.tensor([[10.0, 20.0]])})
    [tensor([11., 22.], dtype=torch.float64)]
    """
    sums = []
    for group in groups.groups:
        total = torch.zeros(group.size, dtype=torch.float64)
        for member in group.members:
            if member.name in scores:
                by_index = scores[member.name].detach().cpu().double().movedim(member.dim, 0).flatten(1).sum(1)
                here = member.units >= 0
                total.index_add_(0, torch.from_numpy(member.units[here]), by_index[torch.from_numpy(here)])
        if not total.isfinite().all():
            raise ScoreError(f"scores of {group.members[0].name!r} and what hangs together with it are NaN or infinite")
        sums.append(total)
    return sums


def select_channels(
    groups: ChannelGroups,
    scores: Mapping[str, Tensor],
    density: float,
    *,
    costs: Mapping[str, float] | None = None,
    round_to: int = 1,
) -> list[Tensor]:
    """Return for each group which units are kept, so that what is left costs as near to ``density`` as units allow.

    Units of all groups are ranked together by `channel_scores` and the lowest go first; ties go by index. What is left
    costs Σ costs[name] · Π (kept indices of each dimension) over the scored parameters. Every group keeps at least one
    unit.

    Args:
        groups: the coupled channel groups.
        scores: {parameter: scores of its shape}, larger = keep.
        density: the part of the cost to keep, 0 < density ≤ 1.
        costs: {parameter: what one of its weights costs}: 1 by default, so that weights are counted; multiply-adds of
            one weight on one input, to count those.
        round_to: groups keep a multiple of this many units, rounded up, if they have as many.

    Raises `InputError` for a density out of range or channels to which nothing can be done.
    """
    if not 0 < density <= 1:
        raise InputError(f"density is above 0 and at most 1, not {density}")
    if round_to < 1:
        raise InputError(f"round_to is a number of channels, at least 1, not {round_to}")
    if not groups.groups:
        reasons = "; ".join(sorted(set(groups.frozen.values()))[:3])
        raise InputError(f"no channel of this module can be removed: {reasons or 'it has no coupled channels'}")
    sums = channel_scores(groups, scores)
    ranking = torch.cat(sums).argsort(stable=True, descending=True)
    places = torch.empty_like(ranking).scatter_(0, ranking, torch.arange(len(ranking)))
    ranks = [part.numpy() for part in places.split([group.size for group in groups.groups])]
    weigh = costs or dict.fromkeys(scores, 1.0)
    target = density * _cost(groups, scores, weigh, [np.ones(len(r), np.bool_) for r in ranks])

    def at(count: int) -> list[NDArray[np.bool_]]:
        return [_best(rank, count, round_to) for rank in ranks]

    low, high = 0, len(ranking)  # the best `low` cost at most the target (or nothing less is allowed), `high` more
    while high - low > 1:
        middle = (low + high) // 2
        if _cost(groups, scores, weigh, at(middle)) <= target:
            low = middle
        else:
            high = middle
    below, above = (_cost(groups, scores, weigh, at(count)) for count in (low, high))
    chosen = at(high if abs(above - target) < abs(below - target) or below == above else low)
    return [torch.from_numpy(keep) for keep in chosen]


def _best(rank: NDArray[np.int64], count: int, round_to: int) -> NDArray[np.bool_]:
    """Mark the units among the best ``count`` of all, at least one, and more until their number is round."""
    number = max(1, int((rank < count).sum()))
    number = min(len(rank), -(-number // round_to) * round_to)
    keep = np.zeros(len(rank), np.bool_)
    keep[np.argsort(rank)[:number]] = True
    return keep


def _cost(
    groups: ChannelGroups, scores: Mapping[str, Tensor], costs: Mapping[str, float], kept: Sequence[NDArray[np.bool_]]
) -> float:
    """Return what is left of the scored parameters, each weight at its cost."""
    sizes = {name: list(tensor.shape) for name, tensor in scores.items()}
    for group, keep in zip(groups.groups, kept, strict=True):
        for member in group.members:
            if member.name in sizes:
                gone = (member.units >= 0) & ~keep[np.maximum(member.units, 0)]
                sizes[member.name][member.dim] -= int(gone.sum())
    return float(sum(costs[name] * float(np.prod(size)) for name, size in sizes.items()))
