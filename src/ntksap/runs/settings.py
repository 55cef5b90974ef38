"""`Settings`: everything that decides a run. Equal settings are the same run."""

import hashlib
import inspect
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch

from ntksap._base import InputError, fill, sealed, toml, unknown, unsealed
from ntksap._prune import ALLOCATIONS, check_combination, own_rules
from ntksap._version import __version__
from ntksap.compaction import Budget, check_budget
from ntksap.data import TABLE
from ntksap.methods import METHODS, method_named
from ntksap.models import model_named
from ntksap.net.kernels import provenance
from ntksap.pruning import (
    CHANNEL,
    CHECKS,
    Floor,
    Rescale,
    Sanity,
    check_regrows,
    density_of,
    floor_of,
    rescale_named,
    schedule_named,
)
from ntksap.training import Recipe, not_default, why_nothing_regrows

DENSE = "dense"
"""The method of the reference run, which prunes nothing."""
THIN = "thin"
"""The method of the baseline that prunes nothing either, but has fewer channels in every layer: at the sparsity of its
budget it costs what a pruned network costs."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """Everything that decides the masks of a given model, with nothing left open. Made by `pruning_for`."""

    method: str
    sparsity: float
    seed: int
    sanity: Sanity = "none"
    rounds: int = 1
    schedule: str = "exponential"
    scope: str = "global"
    floor: Floor = 0
    init: str = "kaiming_normal"
    precision: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    samples_per_class: int = 10
    prune_batch: int = 256
    allocation: str = ""
    places: str = "score"
    pattern: str = ""
    rescale: Rescale = "none"
    budget: Budget = "weights"
    round_to: int = 1
    degree_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Settings(Pruning):
    """One (model, data, method, sparsity, seed, recipe), with nothing left open. Made by `settings_for`."""

    model: str
    data: str
    recipe: Recipe

    @property
    def label(self) -> str:
        """The name of the method in tables and plots, with its sanity check."""
        return label_of(self.method, self.sanity)

    @property
    def name(self) -> str:
        """The name of the run: readable parts, then a hash of every setting that is not the default."""
        model = self.model.replace(":", ".").replace("/", "-")
        parts = [self.data, model, self.method, *([] if self.sanity == "none" else [self.sanity])]
        if self.method != DENSE:
            parts.append(f"{100 * self.sparsity:.2f}")
        stated = {**not_default(self), "recipe": self.recipe.stated()}
        digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
        return "-".join([*parts, f"seed{self.seed}", digest[:8]])

    def plain(self) -> dict[str, Any]:
        """Return plain values that JSON and TOML can hold."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    def to_toml(self, kernels: str | None = None) -> str:
        """Return the settings and the versions in use as TOML; ``kernels``: whose, if not only those in use."""
        return tomli_w.dumps(sealed({**self.plain(), "versions": versions(kernels)}))


def read_settings(path: Path) -> Settings:
    """Return the settings that a run's ``settings.toml`` holds."""
    try:
        values = unsealed(toml.loads(path.read_text(encoding="utf-8")))
        values.pop("versions", None)
        return fill(Settings, values, "a run")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as the settings of a run ({error})") from error


def read_kernels(path: Path) -> str | None:
    """Return whose kernels a run's ``settings.toml`` says were in use, None if it does not say."""
    try:
        kernels = toml.loads(path.read_text(encoding="utf-8"))["versions"]["kernels"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kernels if isinstance(kernels, str) else None


def label_of(method: str, sanity: str) -> str:
    """Return the name of a method with a sanity check in tables and plots."""
    return method if sanity == "none" else f"{method} ({sanity})"


def pruning_for(
    *,
    method: str,
    sparsity: float,
    seed: int = 0,
    sanity: str = "none",
    rounds: int | None = None,
    schedule: str | None = None,
    scope: str | None = None,
    floor: Floor = 0,
    init: str = "kaiming_normal",
    precision: str = "auto",
    options: Mapping[str, Any] | None = None,
    samples_per_class: int = 10,
    prune_batch: int = 256,
    allocation: str = "",
    places: str | None = None,
    pattern: str = "",
    rescale: bool | str = "none",
    budget: str = "weights",
    round_to: int = 1,
    degree_decay: float = 0.0,
    recipe: Recipe | None = None,
) -> Pruning:
    """Return checked settings of a pruning, with the method's defaults filled in (some of them from the recipe)."""
    if sanity not in CHECKS:
        raise unknown("sanity check", sanity, CHECKS)
    if method not in METHODS:
        raise unknown("method", method, [*METHODS, DENSE, THIN])
    chosen = method_named(method)
    density = density_of(sparsity)
    schedule_named(schedule or chosen.schedule)
    inherited = {option: getattr(recipe, setting) for option, setting in chosen.from_recipe.items()} if recipe else {}
    own = {option.name: option.default for option in chosen.options.values()}
    own = chosen.checked({**own, **inherited, **(options or {})})
    if rounds is not None and rounds < 1:
        raise InputError(f"rounds must be at least 1, not {rounds}")
    if sanity == "shuffle" and (places not in (None, "score") or pattern):
        raise InputError("shuffle moves masks to random places, whatever places and pattern say: use places='random'")
    inverted, given = sanity == "invert", (allocation or None, pattern or None)
    places, rule = own_rules(chosen, scope, places, *given, inverted, degree_decay)
    check_combination(
        chosen,
        scope,
        places,
        rule,
        pattern or None,
        rescale,
        inverted,
        floor,
        budget,
        round_to,
        degree_decay,
        rounds,
        schedule,
    )
    floor_of(floor, 1)  # raises
    if rule and places != "score" and chosen.places == "score":
        rounds = 1  # nothing is scored
    return Pruning(
        method=method,
        sparsity=sparsity,
        seed=seed,
        sanity=sanity,  # type: ignore[arg-type]
        rounds=chosen.rounds_at(density) if rounds is None else rounds,
        schedule=schedule or chosen.schedule,
        scope=scope or ("layer" if pattern == CHANNEL else chosen.scope),
        floor=floor,
        init=init,
        precision=precision,
        options=own,
        samples_per_class=samples_per_class,
        prune_batch=prune_batch,
        allocation=rule or "",
        places=places,
        pattern=pattern,
        rescale=rescale_named(rescale),
        budget=budget,  # type: ignore[arg-type]
        round_to=round_to,
        degree_decay=degree_decay,
    )


def settings_for(
    *, model: str, data: str, method: str, sparsity: float, seed: int, recipe: Recipe, **pruning: Any
) -> Settings:
    """Return checked settings of a run; ``pruning`` as in `pruning_for`.

    The dense run and the thin one have no masks: they take none of it, and no regrowth. But the thin one takes a budget
    and, if that is of multiply-adds, an allocation: then it costs as much as masks with these counts.
    """
    model_named(model)  # before a folder is named by it
    if data not in TABLE:
        raise unknown("data set", data, TABLE)
    plain: dict[str, Any] = {"model": model, "data": data, "seed": seed, "recipe": recipe.without_regrowth()}
    if method == DENSE:
        _check_no_masks(method, pruning, recipe)
        return Settings(method=DENSE, sparsity=0.0, **plain)
    if method == THIN:
        density_of(sparsity)
        check_budget(budget := pruning.pop("budget", "weights"), 1)
        rule = (pruning.pop("allocation", None) or "") if budget == "multiply-adds" else ""
        if rule and rule not in ALLOCATIONS:
            raise unknown("allocation for the thin network", rule, ALLOCATIONS)
        _check_no_masks(method, pruning, recipe)
        return Settings(method=THIN, sparsity=sparsity, budget=budget, allocation=rule, **plain)
    if recipe.regrow != "none":
        check_regrows(pruning.get("pattern"))
        images = TABLE[data].images
        if images and (text := why_nothing_regrows(recipe, math.ceil(images / recipe.batch))):
            raise InputError(text)
    chosen = pruning_for(method=method, sparsity=sparsity, seed=seed, recipe=recipe, **pruning)
    return Settings(model=model, data=data, recipe=recipe, **vars(chosen))


def _check_no_masks(method: str, pruning: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise if something is asked of the masks of a network that has none."""
    usual = {name: parameter.default for name, parameter in inspect.signature(pruning_for).parameters.items()}
    usual["places"] = "score"
    given = [name for name, value in pruning.items() if value and value != usual.get(name)]
    given += ["regrow (or make it 'none')"] if recipe.regrow != "none" else []
    if given == ["allocation"] and method == THIN:
        raise InputError(
            "an allocation says how many multiply-adds the thin network has: budget must be 'multiply-adds'"
        )
    if given:
        raise InputError(f"the {method} network has no masks: omit {', '.join(given)}")


def versions(kernels: str | None = None) -> dict[str, str]:
    """Return the versions that a result depends on, and whose kernels may have computed it (on a CPU)."""
    return {
        "ntksap": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "kernels": kernels or provenance(),
    }
