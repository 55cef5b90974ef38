"""What a method is called in tables and figures: its name, and what distinguishes its runs from others.

A setting is named where the runs that are compared differ in it, and only if it is not what the method itself would
have chosen: ``snip``, ``snip, erk``, ``snip, 2:4``, ``snip, degree decay 0.2``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from ntksap._prune import own_rules
from ntksap.methods import METHODS
from ntksap.pruning import CHANNEL
from ntksap.runs import DENSE, THIN, Settings
from ntksap.training import Recipe

IDENTITY = ("model", "data", "recipe")
"""What runs share that may be compared at all."""
_GRID = (*IDENTITY, "sparsity", "seed", "options")
_OF_ALL = ("pattern", "allocation", "places", "degree_decay", "rescale", "regrow")  # others: within a method
_OF_PATTERN = ("budget", "round_to", "scope")  # each pattern has its own
_VALUE_ALONE = ("allocation", "pattern", "regrow")
_PLACES = {"score": "by score", "random": "at random"}


def method_labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the label of each of the runs that are compared: those that differ in more than the seed are not averaged.

    ``runs`` are settings of runs as plain values, or results, which repeat them.
    """
    found = [_settings(run) for run in runs]
    kinds = {_text(one): one for one in found if one["method"] != DENSE}
    differing = {text: _differing(one, list(kinds.values())) for text, one in kinds.items()}
    return [
        _label(run, one, differing[_text(one)] if one["method"] != DENSE else [])
        for run, one in zip(runs, found, strict=True)
    ]


def split_recipe(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe's settings for training, and those for regrowth: the masks of a run are not its training."""
    usual = {field.name: field.default for field in fields(Recipe) if field.name.startswith("regrow")}
    given = {key: settings["recipe"].get(key, default) for key, default in usual.items()}  # old runs have none
    of_training = {key: value for key, value in settings["recipe"].items() if key not in usual}
    return of_training, given if given["regrow"] != "none" else {"regrow": "none"}


def _label(run: Mapping[str, Any], own: Mapping[str, Any], keys: Sequence[str]) -> str:
    usual = _usual(run) if keys else {}
    said = [_words(key, own) for key in keys if _text(own[key]) != _text(usual.get(key, MISSING))]
    return ", ".join([own["method"], *dict.fromkeys(said)])


def _differing(own: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings in which those that are to be told apart by them differ, the pattern first."""
    keys = ("pattern", *sorted(own.keys() - {"pattern", "method", "sanity"}))
    peers = {key: [other for other in every if _compared(key, own, other)] for key in keys}
    return [key for key in keys if len({_text(other.get(key)) for other in peers[key]}) > 1]


def _compared(key: str, own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two runs are to be told apart by this setting."""
    if (other["method"] == THIN) != (own["method"] == THIN):
        return False
    if key in _OF_PATTERN:
        return bool(own["pattern"] == other["pattern"])
    if key == "allocation" and own["method"] == THIN:  # which decides how many multiply-adds are equal
        return bool(own["budget"] == other["budget"])
    if key.startswith("regrow_"):
        return bool(own["regrow"] == other["regrow"])
    return key in _OF_ALL or bool(own["method"] == other["method"])


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the masks of a run at a sparsity; settings that are newer than it have their defaults."""
    own = {field.name: settings[field.name] for field in fields(Settings) if field.name in settings}
    rest: dict[str, Any] = {key: value for key, value in {**_defaults(), **own}.items() if key not in _GRID}
    options = settings.get("options")
    return {**rest, **split_recipe(settings)[1], **(options if isinstance(options, dict) else {})}


def _usual(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each setting is unless the user says otherwise."""
    own = _settings(settings)
    regrowth = {field.name: field.default for field in fields(Recipe) if field.name.startswith("regrow")}
    usual = {**_defaults(), **regrowth}
    chosen = METHODS.get(settings["method"])
    if chosen is None:
        return usual
    pattern, inverted = own["pattern"] or None, settings["sanity"] == "invert"
    places, allocation = own_rules(chosen, None, None, None, pattern, inverted, own["degree_decay"])
    if allocation and not own["allocation"]:
        places = "score"  # as a scope that replaces the method's own allocation has it
    unscored = own["allocation"] and own["places"] != "score" and chosen.places == "score"
    options = {
        name: settings["recipe"].get(chosen.from_recipe.get(name), option.default)
        for name, option in chosen.options.items()
    }
    return {
        **usual,
        "rounds": 1 if unscored else chosen.rounds_at(1 - settings["sparsity"]),
        "schedule": chosen.schedule,
        "scope": "layer" if pattern == CHANNEL else chosen.scope,
        "allocation": allocation or "",
        "places": places,
        **options,
    }


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in fields(Settings) if field.default is not MISSING}


def _words(key: str, own: Mapping[str, Any]) -> str:
    """Return a setting as people say it."""
    value = own[key]
    if key == "scope" or (key == "allocation" and not value):  # then the scope decides
        return f"{own['scope']} scope"
    if key == "budget" and own["method"] == THIN:
        return f"equal {value}"
    if key == "places":
        return _PLACES.get(value, str(value))
    if key in _VALUE_ALONE:
        return str(value) or "unstructured"
    name = key.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
