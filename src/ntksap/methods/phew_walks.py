"""Random walks along the connections of a module, many at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ntksap.compaction import ANYWHERE, Kernels, Step

Ints: TypeAlias = npt.NDArray[np.int64]
Reals: TypeAlias = npt.NDArray[np.float64]
Crossed: TypeAlias = tuple[int, Ints, Ints]
"""(step of a layer, walks that cross it, the connection that each of them takes)."""


class Choice:
    """Entries that belong to keys 0 … K − 1; one of a key's entries is chosen in proportion to its weight."""

    def __init__(self, keys: Ints, weights: Reals, count: int) -> None:
        """Take key and weight of each entry, and K; if all weights of a key are 0, its entries are equally likely."""
        self.totals: Reals = np.bincount(keys, weights, count).astype(np.float64)
        self._order = np.argsort(keys, kind="stable")
        weights = np.where(self.totals[keys] > 0, weights, 1.0)[self._order]
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])
        self._sums = np.concatenate([[0.0], np.cumsum(weights)])

    def draw(self, keys: Ints, uniform: Reals) -> Ints:
        """Return an entry for each key, given a number from [0, 1) for each."""
        first, last = self._ends[keys], self._ends[keys + 1]
        low, high = self._sums[first], self._sums[last]
        found = np.searchsorted(self._sums, low + uniform * (high - low), side="right") - 1
        entries: Ints = self._order[np.clip(found, first, last - 1)]
        return entries


class Side:
    """One end of a layer: its channels, their units, and the connections of each channel."""

    def __init__(self, channel_of: Ints, units: Ints, sizes: Reals) -> None:
        """Take the channel that each connection has at this end, the unit of each channel, the connections' sizes."""
        self.unit_of = units[channel_of]
        self._count = len(units)
        self._connections = Choice(channel_of, sizes, self._count)
        self._known, keys = np.unique(units, return_inverse=True)
        self._channels = Choice(keys, self._connections.totals, len(self._known))

    def gain(self, units: Ints) -> Reals:
        """Return the summed size of the connections of each unit; for a signal that is anywhere, a channel's mean."""
        place, known = _find(self._known, units)
        mean = self._connections.totals.mean()
        gains: Reals = np.where(units == ANYWHERE, mean, np.where(known, self._channels.totals[place], 0.0))
        return gains

    def draw(self, units: Ints, which: Reals, along: Reals) -> Ints:
        """Return a connection for each unit: of one of its channels (any, if anywhere), in proportion to size."""
        place, known = _find(self._known, units)
        own = self._channels.draw(place, which)
        channels = np.where(known & (units != ANYWHERE), own, (which * self._count).astype(np.int64))
        return self._connections.draw(channels, along)


class Layer:
    """The connections of a layer with their sizes (outputs, inputs of one group), from both ends; (o, i) is o·I + i."""

    def __init__(self, kernels: Kernels, sizes: Reals, reaching: Ints | None = None) -> None:
        """Take kernels, their sizes and `reaching` units: forward, others are a way to nowhere."""
        outputs, width = sizes.shape
        group = np.arange(outputs) // (outputs // kernels.groups)
        input_of = (group[:, None] * width + np.arange(width)).ravel()
        useful = np.ones(outputs) if reaching is None else np.isin(kernels.outputs, [ANYWHERE, *reaching])
        self.behind = Side(input_of, kernels.inputs, (sizes * useful[:, None]).ravel())
        self.ahead = Side(np.repeat(np.arange(outputs), width), kernels.outputs, sizes.ravel())


def reaching(steps: Sequence[Step]) -> list[Ints]:
    """Return for each step the units from which a signal reaches the output, where slices leave others out."""
    found = [np.zeros(0, np.int64) for _ in steps]
    alive = [np.full(len(step.units), step.ends) for step in steps]
    for number in reversed(range(len(steps))):
        step = steps[number]
        found[number] = step.units[alive[number]]
        for source in step.sources:
            units = steps[source].units
            if step.kernels is not None:
                useful = (
                    np.isin(step.kernels.outputs, [ANYWHERE, *found[number]]).reshape(step.kernels.groups, -1).any(1)
                )
                inputs = step.kernels.inputs.reshape(step.kernels.groups, -1)[useful]
                alive[source] |= np.isin(units, inputs)
            else:
                mixed = ~np.isin(units, step.units) & (not step.moves)
                alive[source] |= np.isin(units, found[number]) | mixed
    return found


class Walks:
    """The steps of a module, and walks along them.

    From a unit, a walk takes one of its connections in proportion to its size. Where a tensor has several readers
    (backward: several sources), each counts as much as the unit's connections there, a way around all layers as 1.
    """

    def __init__(self, steps: Sequence[Step], layers: Mapping[int, Layer]) -> None:
        """Take the steps and, by their numbers, the layers among them."""
        self.steps, self.layers = steps, layers
        self.readers: list[list[int]] = [[] for _ in steps]
        for number, step in enumerate(steps):
            for source in step.sources:
                self.readers[source].append(number)

    @property
    def draws(self) -> int:
        """The most random numbers that a walk can need."""
        return 3 * len(self.steps)

    def walk(self, uniform: Reals, *, forward: bool) -> Iterator[Crossed]:
        """Yield the layers that walks cross, in the order in which they do.

        Forward from the module's inputs, backward from its last output. There is a walk for each row of ``uniform``
        (walks, draws), whose numbers it uses in order.
        """
        used = np.zeros(len(uniform), np.int64)
        units = np.full(len(uniform), ANYWHERE, np.int64)
        at = self._starts(len(uniform), forward)

        def draw(walks: Ints) -> Reals:
            numbers: Reals = uniform[walks, used[walks]]
            used[walks] += 1
            return numbers

        numbers = range(len(self.steps))
        for number in numbers if forward else reversed(numbers):
            walks = np.flatnonzero(at == number)
            at[walks] = -1
            for following, chosen in self._choose(number, walks, units, draw, forward):
                at[chosen] = following
                crossed = following if forward else number
                if crossed in self.layers:
                    layer = self.layers[crossed]
                    here, there = (layer.behind, layer.ahead) if forward else (layer.ahead, layer.behind)
                    taken = here.draw(units[chosen], draw(chosen), draw(chosen))
                    units[chosen] = there.unit_of[taken]
                    yield crossed, chosen, taken
                else:
                    _, known = _find(self.steps[following].units, units[chosen])
                    units[chosen] = np.where(known, units[chosen], ANYWHERE)

    def _starts(self, count: int, forward: bool) -> Ints:
        """Return the tensor at which each walk begins; several inputs take turns."""
        inputs = [number for number, step in enumerate(self.steps) if not step.sources]
        last = [max(number for number, step in enumerate(self.steps) if step.ends)]
        starts: Ints = np.resize(np.array(inputs if forward else last, np.int64), count)
        return starts

    def _choose(
        self, number: int, walks: Ints, units: Ints, draw: Callable[[Ints], Reals], forward: bool
    ) -> Iterator[tuple[int, Ints]]:
        """Yield (the tensor to go to, the walks that go there) for the walks that stand at a tensor."""
        step = self.steps[number]
        options = self.readers[number] if forward else step.sources
        if not len(walks) or not options:
            return
        if len(options) == 1 and not (forward and step.ends):
            yield options[0], walks
            return
        own = [self._gain(option, units[walks], forward) for option in options]
        if forward and step.ends:  # or it ends here
            own.append(np.ones(len(walks)))
        gains = np.stack(own)
        lost = gains.sum(0) == 0  # no way knows the unit: all are equally good
        gains[:, lost] = 1.0
        shares = np.cumsum(gains / gains.sum(0), 0)
        which = (shares[:-1] <= draw(walks)).sum(0)
        for index, option in enumerate(options):
            if (chosen := walks[which == index]).size:
                yield option, chosen

    def _gain(self, number: int, units: Ints, forward: bool) -> Reals:
        """Return how much a way to a tensor counts for a unit: its connections in the first layer there, else 1."""
        step = self.steps[number]
        if number in self.layers:
            layer = self.layers[number]
            return (layer.behind if forward else layer.ahead).gain(units)
        _, known = _find(step.units, units)
        present: Reals = (known | (units == ANYWHERE)).astype(np.float64)
        further = self.readers[number] if forward else step.sources
        if len(step.sources) != 1 or not further or (forward and step.ends):
            return present
        gains: Reals = present * sum(self._gain(one, units, forward) for one in further)
        return gains


def _find(known: Ints, units: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the place of each unit in the sorted ``known``, and whether it is there."""
    if not len(known):
        return np.zeros_like(units), np.zeros(len(units), np.bool_)
    place: Ints = np.searchsorted(known, units).clip(max=len(known) - 1)
    return place, known[place] == units
