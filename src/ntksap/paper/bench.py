"""Where plans are carried out, and which parts of one can be: settings of its runs, rows without data or method."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ntksap._base import NtksapError
from ntksap.data import load
from ntksap.methods import method_named
from ntksap.paper.plan import Panel, Row, sparsity_at
from ntksap.runs import DENSE, OnProgress, Outcome, Place, Settings, Task, prune_only, settings_for

Execute: TypeAlias = Callable[[Sequence[Settings], Path, Place, Task], Outcome]
"""(settings, folder for runs, place, task) → what became of the sweep."""


@dataclass(frozen=True)
class Bench:
    """Where plans are carried out.

    Args:
        out: the folder for everything; runs and masks are in it only once, whichever plans need them.
        place: data and device.
        execute: carries out a sweep and returns what became of it.
        on_progress: told how far other work has got.
        finished: a folder with finished runs, if nothing is to be carried out.
    """

    out: Path
    place: Place
    execute: Execute
    on_progress: OnProgress = lambda progress: None
    finished: Path | None = None

    def runs(self, otherwise: str) -> Path:
        """Return the folder that runs are in; one of this name in ``out``, unless finished runs are shown."""
        return self.finished or self.out / otherwise


class Spot(NamedTuple):
    """One run of a panel: whose it is, and its settings."""

    row: Row
    step: int
    seed: int
    settings: Settings

    @property
    def title(self) -> str:
        """Which one, in words."""
        sparsity = "" if self.row.method == DENSE else f" at {self.settings.sparsity:.2%}"
        return f"{self.row.name}{sparsity}, seed {self.seed}"


def settings_at(panel: Panel, row: Row, step: int, seed: int) -> Settings:
    """Return the settings of one run."""
    pruning: dict[str, Any] = {
        "rounds": row.rounds,
        "schedule": row.schedule,
        "options": row.options,
        "samples_per_class": panel.samples_per_class,
        "prune_batch": panel.prune_batch,
    }
    return settings_for(
        model=panel.model,
        data=panel.data,
        method=row.method,
        sparsity=sparsity_at(step),
        seed=seed,
        recipe=panel.training,
        **({} if row.method == DENSE else pruning),
    )


def spots(panel: Panel, rows: Sequence[Row]) -> Iterator[Spot]:
    """Yield the runs of some rows: all seeds and sparsities; the dense network has no sparsity."""
    for row in rows:
        for step in panel.steps if row.method != DENSE else (0,):
            for seed in panel.seeds:
                yield Spot(row, step, seed, settings_at(panel, row, step, seed))


def ready(panel: Panel, bench: Bench, *, training: bool) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of a panel that can be carried out (or shown) here, and why each of the others cannot."""
    if bench.finished is not None:
        return list(panel.rows), {}
    place = bench.place
    rows, reasons = [], {}
    absent: str | None = None
    try:
        load(panel.data, place.data_dir, download=place.download)
    except NtksapError as error:
        absent = str(error)
    for row in panel.rows:
        try:
            needs_data = training or not method_named(row.method).data_free
            settings_at(panel, row, panel.steps[0], panel.seeds[0])
        except NtksapError as error:
            reasons[row.name] = str(error)
            continue
        if needs_data and absent:
            reasons[row.name] = absent
        else:
            rows.append(row)
    return rows, reasons


def unfinished(bench: Bench, panel: Panel, wanted: Sequence[Spot], outcome: Outcome) -> list[tuple[str, str, str]]:
    """Return the runs of a panel that are missing, and why; none where only finished ones are to be shown."""
    if bench.finished is not None:
        return []
    names = [(spot, spot.settings.name) for spot in wanted]
    return [(panel.name, spot.title, outcome.failed[name]) for spot, name in names if name not in outcome.results]


def how_many(bench: Bench, wanted: Sequence[Spot], outcome: Outcome) -> list[str]:
    """Return what to say about the number of runs shown, where only finished ones are."""
    if bench.finished is None:
        return []
    return [f"Of the {len(wanted)} runs of this plan, {len(outcome.results)} are finished and shown here."]


def pruned_masks(bench: Bench, panel: Panel, rows: Sequence[Row]) -> tuple[list[Spot], Outcome]:
    """Prune for all spots of some rows (once, whichever plan asks) and return what is known about the masks."""
    wanted = list(spots(panel, rows))
    work = partial(prune_only, input_shape=panel.input_shape, classes=panel.classes)
    return wanted, bench.execute([spot.settings for spot in wanted], bench.out / "masks", bench.place, work)
