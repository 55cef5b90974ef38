"""From a grid of methods, sparsities and seeds to settings, and from a sweep to what became of its runs."""

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ntksap._base import InputError
from ntksap._prune import ALLOCATIONS
from ntksap.methods import method_named
from ntksap.pruning import CHANNEL
from ntksap.runs.settings import DENSE, THIN, Pruning, Settings, pruning_for, settings_for
from ntksap.runs.work import Event
from ntksap.training import Recipe

OnEvent: TypeAlias = Callable[[Event], object]

UNSTRUCTURED = "unstructured"
"""The name for no pattern: single weights."""


@dataclass(frozen=True)
class Outcome:
    """What became of runs, by their names: results, and why others failed."""

    results: dict[str, dict[str, Any]]
    failed: dict[str, str]


def grid(
    model: str,
    data: str,
    methods: Sequence[str],
    sparsities: Sequence[float],
    seeds: Sequence[int],
    *,
    recipe: Recipe,
    sanity: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    patterns: Sequence[str] = (UNSTRUCTURED,),
    thin: bool = False,
    budget: str = "weights",
    round_to: int = 1,
    **pruning: Any,
) -> list[Settings]:
    """Return the settings of every run: the dense reference, then methods × patterns × checks × sparsities × seeds.

    Args:
        model, data: names from their tables.
        methods: names from the table of methods.
        sparsities, seeds: each method prunes to each sparsity with each seed.
        recipe: how to train.
        sanity: checks to add for each method ("shuffle", "reinit", "invert").
        options: options of single methods, for those that have them.
        patterns: names of patterns, or "unstructured".
        thin: add the thin network at each sparsity, and with the pattern "channel" random channels at the same widths.
        budget, round_to: for the pattern "channel"; the budget is also that of the thin network. With multiply-adds, it
            has as many as whole channels leave, or, without that pattern, as masks with the counts of the rule
            ``allocation``, by default those of NTK-SAP in closed form.
        pruning: what else `pruning_for` takes (allocation, places, rescale), the same for every method.
    """
    if (budget, round_to) != ("weights", 1) and not thin and CHANNEL not in patterns:
        raise InputError(
            "budget and round_to are for whole channels or the thin network: add one of these, or omit them"
        )
    _check_methods(methods)
    common: dict[str, Any] = {"model": model, "data": data, "recipe": recipe}
    plain = {**common, "recipe": recipe.without_regrowth()}  # for networks without masks
    own = options_by_method(methods, options)
    dense = [settings_for(method=DENSE, sparsity=0.0, seed=seed, **plain) for seed in seeds]
    beside = "" if budget == "weights" or CHANNEL in patterns else _rule_beside(pruning.get("allocation"))
    thinned = [
        settings_for(method=THIN, sparsity=sparsity, seed=seed, budget=budget, allocation=beside, **plain)
        for sparsity, seed in itertools.product(sparsities if thin else (), seeds)
    ]
    places = pruning.pop("places", None)
    variants: list[dict[str, Any]] = []
    for pattern in patterns:
        if pattern != CHANNEL:
            variants.append({**pruning, "places": places, "pattern": "" if pattern == UNSTRUCTURED else pattern})
            continue
        variants.append({**pruning, "places": places, "pattern": pattern, "budget": budget, "round_to": round_to})
        if thin:
            variants.append({**variants[-1], "places": "random"})
    return (
        dense
        + thinned
        + [
            settings_for(
                method=method, sparsity=sparsity, seed=seed, sanity=check, options=own[method], **common, **variant
            )
            for method, variant, check, sparsity, seed in itertools.product(
                methods, variants, ["none", *sanity], sparsities, seeds
            )
            # places without scores have no lowest ones, and weights that a method chose are for its own places
            if not (check == "invert" and variant["places"] not in (None, "score"))
            if not (variant["places"] != places and method_named(method).returns_weights)
        ]
    )


def _check_methods(methods: Sequence[str]) -> None:
    """Raise if there is nothing to compare, or the networks that have no masks are named among the methods."""
    if DENSE in methods:
        raise InputError("the dense network is always included: omit it from methods")
    if THIN in methods:
        raise InputError("the thin network is added by --thin (thin=True): omit it from methods")
    if not methods:
        raise InputError("methods is empty: name at least one method of `ntksap methods`")


def _rule_beside(allocation: str | None) -> str:
    """Return whose counts give the multiply-adds of the thin network: the masks' rule, if they have one in common."""
    return allocation if allocation in ALLOCATIONS else "ntk-sap"


def prunings(
    methods: Sequence[str],
    sparsities: Sequence[float],
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    data: str | None = None,
) -> list[Pruning]:
    """Return the settings of masks: methods × sparsities. InputError if a method needs ``data`` and has none."""
    own = options_by_method(methods, options)
    for method in methods:
        if data is None and not method_named(method).data_free:
            raise InputError(f"method {method!r} needs data: add --data, or omit it from --methods")
    return [
        pruning_for(method=method, sparsity=sparsity, seed=seed, options=own[method])
        for method, sparsity in itertools.product(methods, sparsities)
    ]


def options_by_method(methods: Sequence[str], options: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return, for each method, those of the options that it has; an option that no method has is an error."""
    given = options or {}
    known = {method: method_named(method).options for method in methods}
    for name in given:
        if not any(name in own for own in known.values()):
            raise InputError(f"none of {', '.join(methods)} has an option {name!r}: omit it")
    return {method: {name: value for name, value in given.items() if name in own} for method, own in known.items()}


def collect(settings: Sequence[Settings], events: Generator[Event, None, None], on_event: OnEvent) -> Outcome:
    """Follow a sweep of these runs, tell ``on_event`` everything that happens, and return what became of them.

    Whatever ends the work, such as Ctrl-C, also stops the sweep; its runs are safe in their folders.
    """
    outcome = Outcome({}, {})
    total = len({one.name for one in settings})
    try:
        for event in events:
            if event.result is not None:
                outcome.results[event.settings.name] = event.result
            elif event.kind == "failed":
                outcome.failed[event.settings.name] = event.error or ""
            on_event(replace(event, runs=total))
    finally:
        events.close()
    return outcome
