"""The loop: score → select → repeat. It knows callables, not names."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from torch import Tensor

from ntksap._base import CollapseWarning, InputError, ScoreError, threads_for
from ntksap.net import Net
from ntksap.pruning.masks import Masks
from ntksap.pruning.probe import Probe
from ntksap.pruning.selector import Selector

Score: TypeAlias = Callable[[Net, Mapping[str, Tensor], Probe], dict[str, Tensor]]
"""(net, masks on the net's device, probe of this round) → {name: score}, larger = keep."""

Pruner: TypeAlias = Callable[..., Iterator[Masks]]
"""A whole pruning: ``pruner(net, probe=…, selector=…, invert=…, after=…)``, with arguments as in `prune_rounds`, yields
the masks after each round t = 1…T, whose ``info`` says ``round`` t and ``rounds`` T."""


def prune_rounds(
    net: Net,
    score: Score,
    probe: Probe,
    *,
    selector: Selector,
    regrow: bool = False,
    invert: bool = False,
    after: Masks | None = None,
) -> Iterator[Masks]:
    """Yield the masks after each round t = 1…T, which keep exactly round(d_t · total) weights, or as
    many as the selector's pattern allows.

    Pruned weights never return unless ``regrow``; ``invert`` keeps the lowest scores. With ``after``, masks that were
    yielded earlier, the loop resumes after their round and ends with the same masks, since each round's randomness
    depends on the seed and the round alone.
    """
    rounds = selector.rounds
    masks = after or Masks.ones({name: net.weights[name] for name in net.prunable})
    for index in range(first_round(rounds, after), rounds + 1):
        scores = score(net, masks.to(net.device), probe.at(index))
        within = None if regrow else masks
        with threads_for(net.weights):
            if not any((s if within is None else s.cpu()[within[name]]).any() for name, s in scores.items()):
                _report_zeros(index, rounds)
            if invert:
                scores = {name: -values for name, values in scores.items()}
            masks = selector.masks(scores, index, within=within, present=masks)
        masks.info |= {"round": index, "rounds": rounds}
        if index == rounds and probe.ranks.size > 1:
            probe.ranks.agree("masks", masks.sha256)
        yield masks


def _report_zeros(index: int, rounds: int) -> None:
    """Say that all scores of a round are 0, so that ties, by index, decide what is kept.

    In the first round nothing has been pruned yet, so it is an error. Later the network has already lost every path
    from input to output, and what is left is of no use anyway: a warning, as for any collapsed layer.
    """
    if index == 1:
        raise ScoreError(
            "every score of the dense net is 0, so they rank nothing. Does a layer of zeros, or something without "
            "a derivative, cut the output off? Change that, or use a method that looks at the weights alone"
        )
    warnings.warn(
        f"every score of round {index} of {rounds} is 0, so they rank nothing: what earlier rounds have left no "
        "longer connects input and output. Lower the sparsity, use another method, or keep some weights in each layer "
        "(floor=)",
        CollapseWarning,
        stacklevel=4,
    )


def first_round(rounds: int, after: Masks | None) -> int:
    """Return the round to begin with: 1, or the one after that of ``after``. Raises if that is impossible."""
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, not {rounds}")
    if after is None:
        return 1
    planned = after.info.get("rounds")
    if planned != rounds:
        raise InputError(f"cannot resume: {planned} rounds were planned before, {rounds} are now")
    return int(after.info["round"]) + 1
