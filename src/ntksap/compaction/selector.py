"""`ChannelSelector`: which channels are kept after each round of a pruning, the pattern ``channel``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from ntksap._base import InputError, generator_of, unknown
from ntksap.compaction.channels import gathered, maskable, spread
from ntksap.compaction.graph import read_graph
from ntksap.compaction.groups import ChannelGroups, groups_of
from ntksap.compaction.selection import left_over, select_channels
from ntksap.compaction.trial import follow_code
from ntksap.compaction.uses import uses_in
from ntksap.net import Inputs, prunable_names, unwrap, weight_views
from ntksap.pruning import CHANNEL, Masks, Schedule, Selector

Budget: TypeAlias = Literal["weights", "multiply-adds"]
"""What a density is a part of."""


@dataclass(frozen=True, kw_only=True)
class ChannelSelector(Selector):
    """Like `Selector`, but units of coupled channels are kept or removed. Made by `channel_selector`.

    After round t what is left costs at most d_t of the whole, and barely less: see `select_channels`.

    Args:
        groups: the coupled channel groups that may lose units.
        shapes: the shapes of all tensors that hold parts of units.
        costs: what one weight of each prunable parameter costs.
        budget: what the costs count.
        round_to: groups keep a multiple of this many units, or all that they have.
    """

    groups: ChannelGroups
    shapes: Mapping[str, tuple[int, ...]]
    costs: Mapping[str, float]
    budget: str
    round_to: int

    def masks(
        self,
        scores: Mapping[str, Tensor],
        round: int,
        within: Mapping[str, Tensor] | None = None,
        present: Mapping[str, Tensor] | None = None,
    ) -> Masks:
        """Return the masks of the prunable weights after a round; a unit's score is the sum over weights still kept."""
        if within is not None:
            scores = {name: values * within[name].to(values.device) for name, values in scores.items()}
        kept = select_channels(
            self.groups,
            {name: scores[name] for name in self.views},
            self.schedule(self.density, round, self.rounds),
            costs=self.costs,
            round_to=self.round_to,
            scope=self.scope,
            within=None if within is None else gathered(self.groups, within),
        )
        return Masks(spread(self.groups, kept, self._weights))

    def placed(self, places: str, seed: int, like: Mapping[str, Tensor] | None = None) -> Masks:
        """Return masks with as many units of each group as ``like`` keeps, at random."""
        assert like is not None  # there is no allocation
        kept = []
        for number, keep in enumerate(gathered(self.groups, like)):
            order = torch.randperm(len(keep), generator=generator_of(seed, "places", CHANNEL, number), device="cpu")
            kept.append(torch.zeros_like(keep).index_fill_(0, order[: int(keep.sum())], True))
        return Masks(spread(self.groups, kept, self._weights))

    def completed(self, masks: Masks) -> Masks:
        """Return final masks with those of biases, norms and running means, and how many channels each group keeps."""
        kept = gathered(self.groups, masks)
        every = spread(self.groups, kept, self.shapes)
        followers = {name: mask for name, mask in every.items() if name not in masks}
        left = left_over(self.groups, self._weights, self.costs, [keep.numpy() for keep in kept])
        channels = {
            f"{group.members[0].name}[{group.members[0].dim}]": [int(keep.sum()), group.size]
            for group, keep in zip(self.groups.groups, kept, strict=True)
        }
        info = {**masks.info, "followers": list(followers), "left": round(left), "channels": channels}
        return Masks({**masks, **followers}, info, masks.weights, masks.state)

    def facts(self) -> dict[str, Any]:
        """Return what was asked for."""
        whole = left_over(self.groups, self._weights, self.costs)
        asked = {"pattern": CHANNEL, "budget": self.budget, "asked": round(self.density * whole)}
        return {**asked, "scope": self.scope, **({"round_to": self.round_to} if self.round_to > 1 else {})}

    @property
    def _weights(self) -> dict[str, tuple[int, ...]]:
        return {name: view.shape for name, view in self.views.items()}


def channel_selector(
    model: nn.Module,
    prunable: Mapping[str, tuple[int, ...]],
    example_inputs: Inputs,
    *,
    density: float,
    rounds: int,
    schedule: Schedule,
    scope: str = "layer",
    budget: str = "weights",
    round_to: int = 1,
) -> ChannelSelector:
    """Read the graph of ``model`` and return the selector of its channels.

    Args:
        model: any module that ``torch.export`` can read; it is not changed.
        prunable: {name: shape} of its prunable weights. Groups with an excluded weight stay whole.
        example_inputs: one input: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
        density, rounds, schedule: as in `Selector`.
        scope: scores compare the units of one group (``"layer"``), of which all keep the same share, or all units
            (``"global"``).
        budget: the density is that of ``"weights"`` or ``"multiply-adds"``, see `weight_uses`.
        round_to: groups keep a multiple of this many units, or all that they have.

    Raises `InputError` if no channel can be removed, with the reasons, or if the arguments make no sense.
    """
    check_budget(budget, round_to)
    model = unwrap(model)
    links = follow_code(read_graph(model, example_inputs), model, example_inputs)
    excluded = set(prunable_names(model)) - set(prunable)
    found = groups_of(links)
    groups = replace(
        found,
        groups=tuple(
            group
            for group in found.groups
            if any(m.name in prunable for m in group.members) and not any(m.name in excluded for m in group.members)
        ),
    )
    standing = {member.name for group in groups.groups for member in group.members}
    sizes = {name: model.get_parameter(name).numel() for name in prunable}
    made = ChannelSelector(
        density,
        rounds,
        schedule,
        weight_views(prunable, model),
        scope=scope,
        groups=groups,
        shapes={name: shape for name, shape in maskable(model).items() if name in standing},
        costs=uses_in(links.graph, sizes) if budget == "multiply-adds" else dict.fromkeys(prunable, 1.0),
        budget=budget,
        round_to=round_to,
    )
    if not groups.groups and found.groups:
        raise InputError("every channel of this module has a weight that is excluded: exclude less")
    if not groups.groups:  # raises, with the reasons
        select_channels(groups, {}, density)
    return made


def check_budget(budget: str, round_to: int) -> None:
    """Raise unless the budget is a known one, and ``round_to`` a number of channels."""
    if budget not in get_args(Budget):
        raise unknown("budget", budget, get_args(Budget))
    if round_to < 1:
        raise InputError(f"round_to is a number of channels, at least 1, not {round_to}")
