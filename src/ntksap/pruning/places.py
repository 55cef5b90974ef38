"""Places: which weights of a layer are kept once their number is known, where no scores decide."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ntksap._base import InputError, generator_of
from ntksap.net import WeightView
from ntksap.pruning.patterns import Block, FanIn, NOfM, Pattern

PLACES = ("score", "random", "balanced")
"""By the scores of the method; at random; at random but regular: see `balanced`."""


def random_scores(views: Mapping[str, WeightView], seed: int) -> dict[str, Tensor]:
    """Return uniform scores for each layer: with them, any selection keeps weights at random."""
    return {
        name: torch.rand(of.shape, generator=generator_of(seed, "places", name), dtype=torch.float32, device="cpu")
        for name, of in views.items()
    }


def balanced_masks(
    counts: Mapping[str, int], views: Mapping[str, WeightView], pattern: Pattern | None, seed: int
) -> dict[str, Tensor]:
    """Return a mask for each layer that keeps its count and is regular, see `balanced`.

    With ``N:M`` each output also keeps at most N of M; with ``block:RxC`` all of this applies to blocks. Raises
    `InputError` for the patterns that contradict it.
    """
    masks = {}
    for name, count in counts.items():
        view, generator = views[name], generator_of(seed, "places", name)
        positions, outputs, inputs = view.sizes
        if pattern is None or isinstance(pattern, FanIn):
            matrices = balanced(count, positions, outputs, inputs, generator)
        elif isinstance(pattern, NOfM):
            left = inputs % pattern.m
            if 0 < left < pattern.n and inputs > pattern.m:
                raise InputError(
                    f"balanced places in {pattern.name}: {name!r} has {inputs} inputs, and the last {left} cannot hold "
                    f"{pattern.n} as the others do; exclude it or use places='random'"
                )
            matrices = balanced(count, positions, outputs, inputs, generator, pattern.n, pattern.m)
        elif isinstance(pattern, Block):
            high, wide = -(-outputs // pattern.rows), -(-inputs // pattern.columns)
            blocks = min(pattern.count(view), max(round(count / pattern.unit(view)), int(count > 0)))
            small = balanced(blocks, positions, high, wide, generator)
            large = small.repeat_interleave(pattern.rows, 1).repeat_interleave(pattern.columns, 2)
            matrices = large[:, :outputs, :inputs]
        else:
            raise InputError(
                f"balanced places and {pattern.name} contradict each other: one wants the same number in every output "
                "(and input), the other decides that itself; use places='random'"
            )
        masks[name] = view.tensor(matrices)
    return masks


def balanced(
    count: int, positions: int, outputs: int, inputs: int, generator: torch.Generator, n: int = 1, m: int = 1
) -> Tensor:
    """Return a random regular mask (positions, outputs, inputs) with ``count`` entries.

    Outputs, inputs, positions of the kernel, and (input, position) pairs all keep the same numbers, within 1.

    One output after another takes the next entries of a sequence of (input, position) pairs. The sequence consists of
    passes, each through all pairs in a new order, so that all are taken equally often; an output that begins in one
    pass and ends in the next meets no pair twice, since those that it already has come later in the next one. What does
    not fill a pass comes first, spread evenly over inputs and positions.

    With ``n`` and ``m``, a pass goes through all sets of ``m`` consecutive inputs, which give their members in turn,
    and an output takes at most ``n`` from a set. Inputs then keep almost the same numbers, within a few.
    """
    width, n = -(-inputs // m), min(n, inputs)  # sets at each position
    sizes = (inputs - m * torch.arange(width, device="cpu")).clamp(max=m)
    chance = torch.rand(width, m, generator=generator, dtype=torch.float32, device="cpu")
    chance.masked_fill_(torch.arange(m, device="cpu") >= sizes[:, None], 2)
    turns = chance.argsort(1)  # the order in which a set gives its members
    sets = positions * width
    degrees = count // outputs + (torch.arange(outputs, device="cpu") < count % outputs).long()
    if int(degrees.max()) > positions * int(sizes.clamp(max=n).sum()):
        raise InputError(f"an output cannot keep {int(degrees.max())} of its {positions * inputs} weights in {n}:{m}")
    ends = degrees.cumsum(0)
    order = _even_order(positions, width, generator)[: count % sets]
    passes, taken = [order], len(order)
    while taken < count:
        order = torch.randperm(sets, generator=generator, device="cpu")
        output = int(torch.searchsorted(ends, taken, right=True))  # the one that is not finished yet
        has = taken - int(ends[output] - degrees[output])
        if has:
            recent = torch.cat(passes[-n - 1 :])
            full = torch.bincount(recent[len(recent) - has :], minlength=sets)[order] >= n
            wants = int(ends[output]) - taken
            rest = torch.cat([order[~full][wants:], order[full]])
            order = torch.cat(
                [order[~full][:wants], rest[torch.randperm(len(rest), generator=generator, device="cpu")]]
            )
        passes.append(order)
        taken += sets
    sequence = torch.cat(passes)
    visits = torch.zeros_like(sequence)  # how often the set came up before: once in each whole pass, and at the start
    first = torch.zeros(sets, dtype=torch.long, device="cpu").index_fill_(0, passes[0], 1)
    whole = torch.arange(len(sequence) - len(passes[0]), device="cpu") // sets
    visits[len(passes[0]) :] = whole + first[sequence[len(passes[0]) :]]
    position, which = sequence // width, sequence % width
    pairs = position * inputs + which * m + turns[which, (visits + position) % sizes[which]]
    rows = torch.repeat_interleave(torch.randperm(outputs, generator=generator, device="cpu"), degrees)
    mask = torch.zeros(outputs, positions * inputs, dtype=torch.bool, device="cpu")
    mask[rows, pairs] = True
    return mask.view(outputs, positions, inputs).transpose(0, 1)


def _even_order(positions: int, width: int, generator: torch.Generator) -> Tensor:
    """Return all of 0 … positions·width − 1, p·width + i, such that every prefix is even in p and in i."""
    index = torch.arange(positions * width, device="cpu")
    shift = index // math.lcm(positions, width)  # else pairs would repeat where the two sizes have a common divisor
    p = torch.randperm(positions, generator=generator, device="cpu")[(index + shift) % positions]
    i = torch.randperm(width, generator=generator, device="cpu")[index % width]
    return p * width + i
