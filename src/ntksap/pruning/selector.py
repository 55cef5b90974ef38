"""`Selector`: what decides, besides the scores, which weights are kept after each round of a pruning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ntksap._base import InputError
from ntksap.net import WeightView, apart, join, parts_of, split
from ntksap.pruning.allocation import Allocation, Floor, allocation_of, shared, uniform
from ntksap.pruning.apportion import apportion
from ntksap.pruning.degrees import decayed
from ntksap.pruning.group_selection import whole_groups
from ntksap.pruning.masks import Masks
from ntksap.pruning.patterns import Cap, Pattern, Tie
from ntksap.pruning.places import balanced_masks, random_scores
from ntksap.pruning.schedules import Schedule, kept_of
from ntksap.pruning.selection import select


@dataclass(frozen=True)
class Selector:
    """How many weights are kept after each round, in which layers and in which pattern.

    Args:
        density: final density d.
        rounds, schedule: after round t exactly round(d_t · total) weights are kept.
        views: the prunable weights, their shapes and layouts. Each of several experts in one weight is a layer.
        scope: ``"global"``, or ``"layer"``, which is the uniform allocation.
        floor: the least that each layer keeps, where all weights are ranked together.
        allocation: what each layer keeps in the end, {name: kept}, rounded to the pattern's units. In round t a layer
            of final density d_l has about the schedule's density for d_l.
        pattern: which weights are tied together or exclude each other.
        degree_decay: c; in round t scores are multiplied by (degree product)^(−c·log₁₀(1/d_t)), see
            `ntksap.pruning.degrees`. 0: they are taken as they are.
    """

    density: float
    rounds: int
    schedule: Schedule
    views: Mapping[str, WeightView]
    scope: str = "global"
    floor: Floor = 0
    allocation: Mapping[str, int] | None = None
    pattern: Pattern | None = None
    degree_decay: float = 0.0
    _layers: dict[str, WeightView] = field(init=False, repr=False)
    _counts: dict[str, int] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.scope not in ("global", "layer"):
            raise InputError(f"scope is 'global' or 'layer', not {self.scope!r}")
        object.__setattr__(self, "_layers", apart(self.views))
        given = None if self.allocation is None else shared(self.allocation, self.views)
        if given is None and self.scope == "layer":
            shapes = {name: view.shape for name, view in self._layers.items()}
            given = dict(allocation_of(shapes, self.density, uniform(shapes), floor=self.floor))
        object.__setattr__(self, "_counts", None if given is None else self._fitted(given))

    @property
    def total(self) -> int:
        """How many weights could be pruned."""
        return sum(math.prod(view.shape) for view in self.views.values())

    def is_final(self, round: int) -> bool:
        """Return whether the density after a round is the final one."""
        return self.schedule(self.density, round, self.rounds) == self.density

    def kept(self, round: int) -> int:
        """Return how many weights are kept after a round, as far as a pattern allows."""
        if self.is_final(round) and self._counts is not None:
            return sum(self._counts.values())
        return kept_of(self.schedule(self.density, round, self.rounds), self.total)

    def _fitted(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the counts nearest to ``counts`` that a pattern allows."""
        views = {name: self._layers[name] for name in counts}
        if isinstance(self.pattern, Cap):
            most = [self.pattern.capacity(view) for view in views.values()]
            shares = apportion(min(sum(counts.values()), sum(most)), [*counts.values()], [0] * len(most), most)
            return dict(zip(counts, shares, strict=True))
        if isinstance(self.pattern, Tie):
            units = [self.pattern.unit(view) for view in views.values()]
            groups = whole_groups([*counts.values()], units, [self.pattern.count(view) for view in views.values()])
            sizes = [math.prod(view.shape) for view in views.values()]  # groups at an edge are smaller
            return {n: min(g * u, s) for n, g, u, s in zip(counts, groups, units, sizes, strict=True)}
        return dict(counts)

    def masks(
        self,
        scores: Mapping[str, Tensor],
        round: int,
        within: Mapping[str, Tensor] | None = None,
        present: Mapping[str, Tensor] | None = None,
    ) -> Masks:
        """Return the masks after a round, given its scores.

        ``within``: only weights that these still keep; ``present``: the masks before the round, for the degrees.
        """
        kept = self.kept(round)
        if self.degree_decay and present is not None:
            exponent = self.degree_decay * math.log10(self.total / kept)
            scores = {n: decayed(scores[n], present[n], view, exponent) for n, view in self.views.items()}
        left = None if within is None else split(within, self.views)
        chosen = select(
            split(scores, self.views),
            kept,
            within=left,
            floor=self.floor,
            counts=None if self._counts is None else self._at(round, left),
            pattern=self.pattern,
            views=self._layers,
            loose=not self.is_final(round),
        )
        return Masks(join(chosen, self.views))

    def satisfied(self, ranked: Mapping[str, int], round: int) -> bool:
        """Return whether this many ranked entries of each weight are enough to choose a round's masks from."""
        if self._counts is None:
            return sum(ranked.values()) >= self.kept(round)
        counts = self._at(round, None)
        return all(ranked[n] >= sum(counts[part] for part in parts_of(n, view)) for n, view in self.views.items())

    def _at(self, round: int, within: Mapping[str, Tensor] | None) -> dict[str, int]:
        """Return what each layer keeps after a round: between its final number and what it still has."""
        final = self._counts
        assert final is not None
        if self.is_final(round):
            return final
        sizes = {name: math.prod(view.shape) for name, view in self._layers.items()}
        alive = sizes if within is None else {name: int(within[name].sum()) for name in sizes}
        quotas = [
            sizes[name] * self.schedule(count / sizes[name], round, self.rounds) if sizes[name] else 0.0
            for name, count in final.items()
        ]
        least = [min(final[name], alive[name]) for name in final]
        kept = max(sum(least), min(self.kept(round), sum(alive.values())))
        return dict(zip(final, apportion(kept, quotas, least, [alive[name] for name in final]), strict=True))

    def placed(self, places: str, seed: int, like: Mapping[str, Tensor] | None = None) -> Masks:
        """Return final masks that no scores decide: ``"random"`` or ``"balanced"`` places, see `ntksap.pruning.places`.

        ``like``: masks that keep as much of each layer; by default the allocation says how much.
        """
        counts = None
        if like is not None:
            counts = self._fitted({name: int(mask.sum()) for name, mask in split(like, self.views).items()})
        return Masks({name: self.place(name, places, seed, counts) for name in self.views})

    def place(self, name: str, places: str, seed: int, counts: Mapping[str, int] | None = None) -> Tensor:
        """Return the mask of one weight, see `placed`; it depends on no other. ``counts``: what each layer keeps."""
        counts = self._counts if counts is None else counts
        assert counts is not None
        own = {name: self.views[name]}
        layers = apart(own)
        counts = {layer: counts[layer] for layer in layers}
        if places == "balanced":
            return join(balanced_masks(counts, layers, self.pattern, seed), own)[name]
        scores, kept = random_scores(layers, seed), sum(counts.values())
        return join(select(scores, kept, counts=counts, pattern=self.pattern, views=layers), own)[name]

    def completed(self, masks: Masks) -> Masks:
        """Return final masks with everything that belongs to them; here there is nothing to add."""
        return masks

    def facts(self) -> dict[str, Any]:
        """Return what is worth knowing about final masks: their allocation, and what their pattern made of it."""
        facts: dict[str, Any] = {}
        if stacks := [name for name, view in self.views.items() if view.stack]:
            facts["stacks"] = stacks
        if self.allocation is not None:
            facts["allocation"] = (
                self.allocation.info.get("rule") if isinstance(self.allocation, Allocation) else "given"
            )
        if self.degree_decay:
            facts["degree_decay"] = self.degree_decay
        if self.pattern is not None:
            facts["pattern"] = self.pattern.name
            facts["asked"] = kept_of(self.density, self.total)
            if first := {name: view.inputs_first for name, view in self.views.items() if view.inputs_first}:
                facts["inputs_first"] = first
        return facts
