"""Which settings of `ntksap.prune` go together, and a sentence for those that do not."""

from collections.abc import Collection
from typing import TypeVar

from ntksap._base import InputError, Range, unknown
from ntksap._prune.rules import ALLOCATIONS, Rule
from ntksap.compaction import check_budget
from ntksap.methods import METHODS, Method
from ntksap.pruning import CHANNEL, PLACES, Floor, pattern_named, rescale_named


def check_options(method: Method, options: Collection[str], keywords: Collection[str]) -> None:
    """Raise for a keyword that is neither among `prune`'s nor the method's, with the nearest one that is."""
    for name in options:
        if name not in method.options:
            raise unknown(f"keyword of prune with method {method.name!r}", name, [*keywords, *method.options])


_Given = TypeVar("_Given")


def own_rules(
    chosen: Method,
    scope: str | None,
    places: str | None,
    allocation: _Given | None,
    pattern: str | None,
    invert: bool,
    degree_decay: float,
) -> tuple[str, _Given | str | None]:
    """Return the places and the allocation of a `prune`: what the user says, else what the method has.

    A scope replaces the method's own allocation, and whole channels have none. Its own places yield to its scores
    where something is asked for that is about scores.
    """
    free = allocation is None and scope is None and pattern != CHANNEL
    scored = scope is not None or pattern is not None or invert or degree_decay
    return places or ("score" if scored else chosen.places), chosen.allocation if free else allocation


def check_combination(
    chosen: Method,
    scope: str | None,
    places: str,
    allocation: Rule | None,
    pattern: str | None,
    rescale: bool | str,
    invert: bool,
    floor: Floor = 0,
    budget: str = "weights",
    round_to: int = 1,
    degree_decay: float = 0.0,
    rounds: int | None = None,
    schedule: str | None = None,
) -> None:
    """Raise where settings of `prune` are unknown or contradict each other, and say why."""
    if places not in PLACES:
        raise unknown("places", places, PLACES)
    if isinstance(allocation, str) and allocation not in ALLOCATIONS and allocation not in METHODS:
        raise unknown("allocation", allocation, {**ALLOCATIONS, **METHODS})
    if pattern is not None:
        pattern_named(pattern)
    check_budget(budget, round_to)
    Range(0).check("degree_decay", degree_decay)
    if pattern == CHANNEL:
        _check_channels(chosen, places, allocation, rescale, floor, degree_decay)
    elif (budget, round_to) != ("weights", 1):
        raise InputError("budget and round_to are for whole channels (pattern='channel'): omit them")
    if allocation is not None and scope is not None:
        raise InputError("an allocation says how many weights each layer keeps, and so does scope: omit scope")
    if chosen.returns_weights and places != "score":
        raise InputError(f"{chosen.name} chooses weights for the places of its own mask: places must be 'score'")
    if chosen.returns_weights and rescale_named(rescale) != "none":
        raise InputError(f"{chosen.name} chooses the weights to start from itself: they cannot be rescaled as well")
    if degree_decay and chosen.score is None:
        raise InputError(f"degree_decay multiplies scores, and {chosen.name} has none: omit degree_decay")
    if degree_decay and (allocation is not None or (scope or chosen.scope) == "layer"):
        instead = "omit allocation" if allocation is not None and allocation != chosen.allocation else "scope='global'"
        _check_decays(chosen, places, rounds or chosen.rounds, schedule or chosen.schedule, instead)
    if invert and places != "score":
        raise InputError("invert keeps the lowest scores, and these places have none: omit one of the two")


def _check_decays(chosen: Method, places: str, rounds: int, schedule: str, instead: str) -> None:
    """Raise where degree decay would change nothing in layers whose numbers of weights are fixed."""
    if places != "score":
        raise InputError(f"degree_decay multiplies scores, and {places} places need none: omit one of the two")
    if rounds == 1 or (schedule == "one-shot" and not chosen.regrow):
        raise InputError(
            f"degree_decay changes nothing in {chosen.name}: each layer keeps a fixed number of weights, and while it "
            "has all of them, their degrees are equal. Prune in several rounds (rounds=, schedule='exponential'), rank "
            f"all weights together ({instead}), or omit degree_decay or {chosen.name}"
        )


def _check_channels(
    chosen: Method,
    places: str,
    allocation: Rule | None,
    rescale: bool | str,
    floor: Floor,
    degree_decay: float,
) -> None:
    """Raise where a setting counts the weights of single layers, since a channel takes weights from several at once."""
    if chosen.allocation not in (None, "ntk-sap") or degree_decay:  # the closed form has scores of single weights too
        what = "degree_decay" if degree_decay else chosen.name
        raise InputError(f"{what} is about single weights of a layer, and channels go as a whole: omit one of the two")
    if allocation is not None:
        raise InputError(
            "an allocation says how many weights each layer keeps, and a channel takes weights from several layers at "
            "once (pattern='channel'): omit it"
        )
    if floor:
        raise InputError("floor counts weights of a layer; channels always keep at least one per group: omit it")
    if places == "balanced":
        raise InputError(
            "balanced places and channel contradict each other: one wants the same number in every output, the other "
            "removes whole outputs; use places='random' (as many channels, at random)"
        )
    if rescale_named(rescale) == "layer":
        raise InputError(
            "rescale='layer' assumes that pruned weights are spread over a layer's outputs, and channels go as a "
            "whole: use rescale='unit'"
        )
