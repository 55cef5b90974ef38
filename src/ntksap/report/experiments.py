"""Which runs may be compared: those that share model, data and recipe. Only their seeds are averaged.

What a recipe says about regrowth concerns the masks: here it distinguishes methods, which share one dense reference.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ntksap.methods import METHODS
from ntksap.report.labels import IDENTITY, method_labels, split_recipe
from ntksap.report.reading import Run
from ntksap.report.table import Cell, cells
from ntksap.runs import DENSE, THIN, label_of


@dataclass(frozen=True)
class Experiment:
    """Runs that share model, data and recipe, as (label, run), methods in the order of their table."""

    title: str
    runs: list[tuple[str, Run]]
    table: list[Cell]

    @property
    def finished(self) -> list[tuple[str, Run]]:
        """The runs that have a result."""
        return [(label, run) for label, run in self.runs if run.result is not None]

    @property
    def methods(self) -> list[str]:
        """The labels of everything except the dense reference."""
        return list(dict.fromkeys(label for label, _ in self.runs if label != DENSE))

    @property
    def sparsities(self) -> list[float]:
        """The sparsities of everything except the dense reference, in ascending order."""
        return sorted({run.settings["sparsity"] for label, run in self.runs if label != DENSE})

    @property
    def dense_flops(self) -> float | None:
        """Multiply-adds of the dense network."""
        return next((run.result["dense_flops"] for _, run in self.runs if run.result), None)

    @property
    def total(self) -> float | None:
        """Prunable weights of the dense network, as results of pruned ones give them."""
        return next((run.result["total"] for _, run in self.finished if run.result and run.result.get("total")), None)

    @property
    def test_images(self) -> int | None:
        """How many images each accuracy is taken over, where all results agree on it."""
        found = {cell.test_images for cell in self.table}
        return found.pop() if len(found) == 1 else None


def experiments(runs: Iterable[Run]) -> list[Experiment]:
    """Return the experiments that readable runs belong to; a run that appears twice counts once, the finished one."""
    groups: dict[str, list[Run]] = {}
    known: set[str] = set()
    for run in sorted(runs, key=lambda run: (run.result is None, run.name)):
        if not run.settings:
            continue
        identity = _text(run.settings)
        if identity not in known:
            known.add(identity)
            shared = {**{key: run.settings[key] for key in IDENTITY}, "recipe": split_recipe(run.settings)[0]}
            groups.setdefault(_text(shared), []).append(run)
    made = [_experiment(group, list(groups.values())) for group in groups.values()]
    return sorted(made, key=lambda experiment: experiment.title)


def sparsity_text(sparsity: float) -> str:
    """Return a sparsity as people write it, with as many digits as it takes not to be 100 %.

    >>> sparsity_text(0.982), sparsity_text(0.99996)
    ('98.2 %', '99.996 %')
    """
    return f"{100 * sparsity:.{4 if sparsity < 0.999 else 7}g} %"


def _experiment(runs: list[Run], groups: list[list[Run]]) -> Experiment:
    first = runs[0].settings
    alike = [g[0].settings for g in groups if all(g[0].settings[key] == first[key] for key in ("model", "data"))]
    epochs = first["recipe"].get("epochs", "?")
    title = f"{first['model']} on {first['data']}, {epochs} {'epoch' if epochs == 1 else 'epochs'}"
    others = _differences([split_recipe(settings)[0] for settings in alike], split_recipe(first)[0])
    title += "".join(f", {text}" for text in others if not text.startswith("epochs="))
    labels = method_labels([run.settings for run in runs])
    named = sorted(zip(labels, runs, strict=True), key=lambda pair: _order(*pair))
    table = cells({**run.settings, **run.result, **_place(method, run)} for method, run in named if run.result)
    return Experiment(title, [(label_of(method, run.settings["sanity"]), run) for method, run in named], table)


def _place(method: str, run: Run) -> dict[str, Any]:
    return {"method": method, **{key: run.settings[key] for key in ("sanity", "sparsity", "seed")}}


def labelled_cells(results: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return a cell for each method, sparsity and variant (anything else in which the settings of results differ)."""
    labels = method_labels(results)
    return cells({**result, "method": label} for result, label in zip(results, labels, strict=True))


def _differences(all_settings: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> list[str]:
    """Return "key=value" of ``own`` for each key in which the settings differ."""
    return [f"{key}={own[key]}" for key in sorted(own) if len({_text(s.get(key)) for s in all_settings}) > 1]


def _order(method: str, run: Run) -> tuple[Any, ...]:
    known = [DENSE, THIN, *METHODS]
    name = run.settings["method"]
    place = known.index(name) if name in known else len(known)
    return (place, method, run.settings["sanity"] != "none", run.settings["sanity"], run.settings["sparsity"], run.name)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
