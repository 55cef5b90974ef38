"""`Plan`: one table or figure of the paper, as a TOML file of ``plans/`` describes it.

A plan has panels (one model on one data set each), a panel has rows (a method with its settings) and steps: the paper
removes a fifth of what is left again and again, so step k is the sparsity 1 − 0.8^k. What differs at a scale is in a
table of the scale's name, in the plan, in a panel or in a row; the narrower one wins. There, ``only`` lists the rows
that the scale has; a text instead of the table says why the scale has nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ntksap._base import InputError, fill, toml, unknown
from ntksap.training import Recipe, load_recipe

Scale = Literal["quick", "paper"]
PLANS = Path(__file__).parent / "plans"
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class Row:
    """One line of a table, or one curve: a method with what differs from its defaults."""

    method: str
    label: str = ""
    """Its name in the table; the method's name if empty."""
    rounds: int | None = None
    schedule: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    times: float = 1.0
    """For tables of time: the row takes this many times the work that is timed."""

    @property
    def name(self) -> str:
        """The label, or the method's name."""
        return self.label or self.method


@dataclass(frozen=True)
class Panel:
    """One model on one data set."""

    name: str
    rows: tuple[Row, ...]
    model: str = ""
    data: str = ""
    input_shape: tuple[int, int, int] = (0, 0, 0)
    classes: int = 0
    images: int = 0
    """Images that an epoch trains on."""
    recipe: str = ""
    recipe_settings: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    """For tables that have no sparsities: what is compared."""
    seeds: tuple[int, ...] = (0,)
    samples_per_class: int = 10
    prune_batch: int = 256
    metric: Literal["top1", "train_accuracy"] = "top1"
    inputs: int = 100
    """Inputs that kernels are computed on."""
    epochs: tuple[int, ...] = ()
    """When kernels are computed during training."""
    unit: float = 1.0
    """The paper's numbers are multiples of it."""
    reported: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The paper's numbers by row, a number for each step (or column) of the scale "paper"."""
    reported_std: Mapping[str, Sequence[float]] = field(default_factory=dict)
    reported_steps: tuple[int, ...] = ()
    """The steps of those numbers; all steps of the scale "paper" by default."""

    @property
    def training(self) -> Recipe:
        """The recipe with the panel's own settings."""
        return load_recipe(self.recipe, self.recipe_settings)

    def paper(self, row: str, step: int) -> Any:
        """Return the paper's number for a row at a step, None if it gives none."""
        return self._at(self.reported, row, step)

    def paper_std(self, row: str, step: int) -> float | None:
        """Return the paper's standard deviation for a row at a step, None if it gives none."""
        found: float | None = self._at(self.reported_std, row, step)
        return found

    def _at(self, numbers: Mapping[str, Sequence[Any]], row: str, step: int) -> Any:
        if row not in numbers or step not in self.reported_steps:
            return None
        index = self.reported_steps.index(step)
        return numbers[row][index] if index < len(numbers[row]) else None


@dataclass(frozen=True)
class Plan:
    """A table or figure at one scale; ``left_out`` are panels that this scale does not have, and why."""

    name: str
    title: str
    where: str
    kind: str
    scale: Scale
    panels: tuple[Panel, ...]
    left_out: Mapping[str, str]
    claims: tuple[str, ...] = ()
    note: str = ""

    @property
    def folder(self) -> str:
        """The name of the folder for its results."""
        return f"{self.name}-{self.scale}"

    def narrow(self, panels: Sequence[str] = (), seeds: Sequence[int] = ()) -> "Plan":
        """Return the plan with only these panels, and with other seeds, if they are given."""
        names = [panel.name for panel in self.panels]
        for name in panels:
            if name not in [*names, *self.left_out]:
                raise unknown(f"panel of {self.name}", name, [*names, *self.left_out])
        chosen = [panel for panel in self.panels if not panels or panel.name in panels]
        if seeds:
            chosen = [replace(panel, seeds=tuple(seeds)) for panel in chosen]
        left_out = {name: why for name, why in self.left_out.items() if not panels or name in panels}
        return replace(self, panels=tuple(chosen), left_out=left_out)


def sparsity_at(step: int) -> float:
    """Return 1 − 0.8^step.

    >>> round(100 * sparsity_at(18), 2)
    98.2
    """
    return float(1 - 0.8**step)


def plan_names() -> list[str]:
    """Return the names of the plans that come with the package."""
    return sorted(path.stem for path in PLANS.glob("*.toml"))


def read_plan(name_or_path: str | Path, scale: Scale) -> Plan:
    """Return a plan by name, or from a TOML file of your own (a path, or text that ends in ``.toml``)."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        if str(name_or_path) not in plan_names():
            raise unknown("table or figure", str(name_or_path), plan_names())
        path = PLANS / f"{name_or_path}.toml"
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
        return _plan(path.stem, values, scale)
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a plan, which is a TOML file: {error}") from error
    except KeyError as error:
        raise InputError(f"{path} is not a plan: it lacks {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a plan: {error}") from error


def _plan(name: str, values: dict[str, Any], scale: Scale) -> Plan:
    common, nowhere = _at_scale(values, scale)
    read, left_out = [], {}
    for raw in values.pop("panels"):
        own, not_here = _at_scale(raw, scale)
        if nowhere or not_here:
            left_out[raw["name"]] = nowhere or not_here
        else:
            read.append(_panel(raw, {**raw, **common, **own}, scale))
    known = _without_scales(values)
    if isinstance(title := known.get("title"), str) and not _drawable(title):
        raise InputError("its title must be up to 100 characters that figures can show")
    return fill(Plan, {**known, "name": name, "scale": scale, "panels": read, "left_out": left_out}, "a plan")


def _at_scale(values: Mapping[str, Any], scale: Scale) -> tuple[dict[str, Any], str]:
    """Return what a table says about a scale: what differs there, or (as text) why there is nothing at that scale."""
    found = values.get(scale, {})
    return ({}, found) if isinstance(found, str) else (found, "")


def _panel(raw: Mapping[str, Any], values: dict[str, Any], scale: Scale) -> Panel:
    values = _without_scales(values)
    rows = [fill(Row, {**_without_scales(row), **row.get(scale, {})}, "a row") for row in values["rows"]]
    only = values.pop("only", [row.name for row in rows])
    values["rows"] = tuple(row for row in rows if row.name in only)
    for name in only:
        if name not in [row.name for row in rows]:
            raise unknown(f"row of panel {raw['name']}", name, [row.name for row in rows])
    values["reported_steps"] = tuple(raw.get("reported_steps") or raw.get("steps", range(len(raw.get("columns", ())))))
    panel = fill(Panel, values, "a panel")
    for what, wrong in (
        ("a name of letters, digits, - and _", not re.fullmatch(r"[\w-]{1,60}", panel.name, re.ASCII)),
        ("steps from 0 to 100", any(not 0 <= step <= 100 for step in (*panel.steps, *panel.reported_steps))),
        ("at least one seed", not panel.seeds),
        ("an input_shape of sizes up to 4096", any(not 0 <= size <= 4096 for size in panel.input_shape)),
        ("at most a million classes", not 0 <= panel.classes <= 10**6),
        ("from 1 to 100,000 inputs", not 1 <= panel.inputs <= 10**5),
        ("a pruning set of at least 1", min(panel.samples_per_class, panel.prune_batch) < 1),
        ("numbers in reported", bool(panel.steps) and not _all_numbers(panel)),
        ("a finite unit that is not 0", not 0 < abs(panel.unit) < 1e30),
        (
            "rows with names of up to 100 characters that figures can show",
            not all(_drawable(r.name) for r in panel.rows),
        ),
        ("rows of 1 to 100,000 rounds", any(r.rounds is not None and not 1 <= r.rounds <= 10**5 for r in panel.rows)),
        ("rows with times above 0", any(not 0 < row.times < 1e30 for row in panel.rows)),
    ):
        if wrong:
            raise InputError(f"a panel has {what}; {panel.name[:60]!r} does not")
    return panel


def _drawable(text: str) -> bool:
    """Whether figures can show it: matplotlib takes what is between two $ for a formula."""
    return len(text) <= 100 and text.isprintable() and "$" not in text


def _all_numbers(panel: Panel) -> bool:
    numbers = [*panel.reported.values(), *panel.reported_std.values()]
    return all(isinstance(number, int | float) for row in numbers for number in row)


def _without_scales(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in SCALES}
