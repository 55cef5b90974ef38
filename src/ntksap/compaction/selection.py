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
        total = torch.zeros(group.size, dtype=torch.float64, device="cpu")
        for member in group.members:
            if member.name in scores:
                by_index = scores[member.name].detach().cpu().double().movedim(member.dim, 0).flatten(1).sum(1)
                here = member.units >= 0
                total.index_add_(0, torch.from_numpy(member.units[here]), by_index[torch.from_numpy(here)])
        if not total.isfinite().all():
            raise ScoreError(f"scores of {group.members[0].name!r} and what is coupled with it are NaN or infinite")
        sums.append(total)
    return sums


def select_channels(
    groups: ChannelGroups,
    scores: Mapping[str, Tensor],
    density: float,
    *,
    costs: Mapping[str, float] | None = None,
    round_to: int = 1,
    scope: str = "layer",
    within: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Return for each group which units are kept, so that what is left costs at most ``density``, and barely less.

    Units of all groups are ranked together: by the share of their own group that `channel_scores` puts before them, so
    that all groups keep the same share, or, with the scope ``"global"``, by the scores themselves. Ties go by index.
    The best are kept as long as they fit, then the next best of each group that still fit: no more can be added. What
    is left costs Σ costs[name] · Π (kept indices of each dimension) over the scored parameters. Every group keeps at
    least one unit, whatever that costs.

    Args:
        groups: the coupled channel groups.
        scores: {parameter: scores of its shape}, larger = keep.
        density: the part of the cost to keep, 0 < density ≤ 1.
        costs: {parameter: what one of its weights costs}: 1 by default, so that weights are counted; `weight_uses`
            to count multiply-adds.
        round_to: groups keep a multiple of this many units, or all that they have.
        scope: scores compare units of one group (``"layer"``) or of all (``"global"``).
        within: for each group a bool tensor (size), the units that may be kept; all by default.

    Raises `InputError` for a density out of range, or if no channel can be removed.
    """
    if not 0 < density <= 1:
        raise InputError(f"density is above 0 and at most 1, not {density}")
    if round_to < 1:
        raise InputError(f"round_to is a number of channels, at least 1, not {round_to}")
    if not groups.groups:
        reasons = "; ".join(sorted(set(groups.frozen.values()))[:3])
        raise InputError(f"no channel of this module can be removed: {reasons or 'it has no coupled channels'}")
    sums = channel_scores(groups, scores)
    if within is not None:  # those that may not be kept come last
        sums = [own.masked_fill(~free, -torch.inf) for own, free in zip(sums, within, strict=True)]
    most = [int((own > -torch.inf).sum()) for own in sums]
    if scope == "layer":
        sums = [-own.argsort(stable=True, descending=True).argsort() / len(own) for own in sums]
    ranking = torch.cat(sums).argsort(stable=True, descending=True)
    places = torch.empty_like(ranking).scatter_(0, ranking, torch.arange(len(ranking), device="cpu"))
    ranks = [part.numpy() for part in places.split([group.size for group in groups.groups])]
    orders = [np.argsort(rank) for rank in ranks]

    def kept(numbers: Sequence[int]) -> list[NDArray[np.bool_]]:
        return [np.isin(np.arange(len(order)), order[:n]) for order, n in zip(orders, numbers, strict=True)]

    def best(count: int) -> list[int]:
        """Return how many units each group has among the best ``count`` of all, at least one, rounded up."""
        found = [max(1, int((rank < count).sum())) for rank in ranks]
        return [min(m, -(-n // round_to) * round_to) for n, m in zip(found, most, strict=True)]

    def fits(numbers: Sequence[int]) -> bool:
        return left_over(groups, shapes, weigh, kept(numbers)) <= budget

    shapes = {name: tuple(tensor.shape) for name, tensor in scores.items()}
    weigh = costs or dict.fromkeys(scores, 1.0)
    budget = density * left_over(groups, shapes, weigh) * (1 + 1e-12)  # up to rounding
    low, high = 0, len(ranking) + 1  # the best `low` fit (or nothing less is allowed), the best `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(best(middle)) else (low, middle)
    numbers = best(low)
    while True:
        more = [min(m, n + round_to) for n, m in zip(numbers, most, strict=True)]
        larger = [g for g in range(len(numbers)) if more[g] > numbers[g]]
        larger.sort(key=lambda g: int(ranks[g][orders[g][numbers[g]]]))
        tried = ([*numbers[:g], more[g], *numbers[g + 1 :]] for g in larger)
        found = next((one for one in tried if fits(one)), None)
        if found is None:
            return [torch.from_numpy(keep) for keep in kept(numbers)]
        numbers = found


def left_over(
    groups: ChannelGroups,
    shapes: Mapping[str, tuple[int, ...]],
    costs: Mapping[str, float],
    kept: Sequence[NDArray[np.bool_]] | None = None,
) -> float:
    """Return the cost of the parameters of these shapes when only the ``kept`` units are left; by default all."""
    sizes = {name: list(shape) for name, shape in shapes.items()}
    for group, keep in zip(groups.groups if kept is not None else (), kept or (), strict=True):
        for member in group.members:
            if member.name in sizes:
                gone = (member.units >= 0) & ~keep[np.maximum(member.units, 0)]
                sizes[member.name][member.dim] -= int(gone.sum())
    return float(sum(costs[name] * float(np.prod(size)) for name, size in sizes.items()))
