"""The loop: score → select → repeat. It knows callables, not names."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from ntksap._base import CollapseWarning, InputError, ScoreError
from ntksap.net import Net
from ntksap.pruning.masks import Masks
from ntksap.pruning.probe import Probe
from ntksap.pruning.schedules import Schedule, kept_of
from ntksap.pruning.selection import select

Score: TypeAlias = Callable[[Net, Mapping[str, Tensor], Probe], dict[str, Tensor]]
"""(net, masks on the net's device, probe of this round) → {name: score}, larger = keep."""


@dataclass(frozen=True)
class Round:
    """What is known after round ``index`` of ``rounds``; enough to go on from."""

    index: int
    rounds: int
    masks: Masks
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Where training is to start, by name, if the method changes the weights."""
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """What else its pruner needs to go on behind this round."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the method has to say: plain values that survive JSON."""


Pruner: TypeAlias = Callable[..., Iterator[Round]]
"""A whole pruning: ``pruner(net, probe=…, density=…, rounds=…, schedule=…, scope=…, floor=…, invert=…, after=…)``, as
`prune_rounds` has them, yields a `Round` for each t = 1…T."""


def prune_rounds(
    net: Net,
    score: Score,
    probe: Probe,
    *,
    density: float,
    rounds: int,
    schedule: Schedule,
    regrow: bool = False,
    scope: str = "global",
    floor: int = 0,
    invert: bool = False,
    after: Round | None = None,
) -> Iterator[Round]:
    """Yield the state after each round t = 1…T; after round t exactly round(d_t · total) weights are kept.

    Pruned weights never return unless ``regrow``; ``invert`` keeps the lowest scores. With ``after``, a round yielded
    earlier, the loop goes on behind it and ends with the same masks, since each round's randomness depends on the seed
    and the round alone.
    """
    check_rounds(rounds, after)
    masks = after.masks if after else Masks.ones({name: net.weights[name] for name in net.prunable})
    for index in range(after.index + 1 if after else 1, rounds + 1):
        scores = score(net, masks.to(net.device), probe.at(index))
        within = None if regrow else masks
        if not any((values if within is None else values.cpu()[within[name]]).any() for name, values in scores.items()):
            _report_zeros(index, rounds)
        if invert:
            scores = {name: -values for name, values in scores.items()}
        kept = kept_of(schedule(density, index, rounds), masks.total)
        masks = Masks(select(scores, kept, within=within, scope=scope, floor=floor))
        if index == rounds and probe.ranks.size > 1:
            probe.ranks.agree("masks", masks.sha256)
        yield Round(index, rounds, masks)


def _report_zeros(index: int, rounds: int) -> None:
    """Say that all scores of a round are 0, so that ties, by index, decide what is kept.

    In the first round nothing has been done yet, and it is an error. Later the network has already lost every path from
    input to output, and what is left is worth no more than that: a warning, as for any collapsed layer.
    """
    if index == 1:
        raise ScoreError(
            "every score of the dense net is 0, so they rank nothing. Does a layer of zeros, or something without "
            "a derivative, cut the output off? Change that, or use a method that looks at the weights alone"
        )
    warnings.warn(
        f"every score of round {index} of {rounds} is 0, so they rank nothing: what the rounds before have left no "
        "longer connects input and output. Lower the sparsity, use another method, or keep some weights in each layer "
        "(floor=)",
        CollapseWarning,
        stacklevel=4,
    )


def check_rounds(rounds: int, after: Round | None) -> None:
    """Raise unless ``rounds`` can be done, going on behind ``after``."""
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, not {rounds}")
    if after is not None and after.rounds != rounds:
        raise InputError(f"cannot go on: {after.rounds} rounds were planned before, {rounds} are now")
