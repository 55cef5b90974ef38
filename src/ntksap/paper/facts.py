"""Tables of facts: what methods need, and how networks are trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ntksap._base import InputError, NtksapError, unknown
from ntksap.methods import method_named
from ntksap.paper.bench import Bench
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.plan import Plan
from ntksap.runs import Pruning
from ntksap.training import load_recipe


def overview(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Compare what the methods need with the paper's overview."""

    def facts(name: str) -> list[Any]:
        method = method_named(name)
        return [method.weight_agnostic, method.data_free, method.iterative]

    return _compared(plan, facts)


def recipes(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Compare the training recipes with the paper's hyper-parameters."""

    def facts(name: str) -> list[Any]:
        settings = {**vars(load_recipe(name)), "init": Pruning.init}  # weights are drawn as every run draws them
        (panel,) = plan.panels
        for column in panel.columns:
            if column not in settings:
                raise unknown("setting of a recipe", column, settings)
        values = [settings[column] for column in panel.columns]
        return [", ".join(map(str, value)) if isinstance(value, tuple) else value for value in values]

    return _compared(plan, facts)


def _compared(plan: Plan, facts: Callable[[str], list[Any]]) -> Comparison:
    entries, missing = [], []
    for panel in plan.panels:
        for row in panel.rows:
            try:
                found = facts(row.method)
            except NtksapError as error:
                missing.append((panel.name, row.name, str(error)))
                continue
            if len(panel.columns) != len(found):
                raise InputError(f"{plan.name}: there are {len(found)} columns, not {len(panel.columns)}")
            for index, (column, value) in enumerate(zip(panel.columns, found, strict=True)):
                paper = panel.paper(row.name, index)
                entries.append(Entry(panel.name, row.name, column, value, paper, measure="same"))
    return Comparison(plan, entries, missing)
