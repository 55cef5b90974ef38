"""Accuracy against sparsity: a sweep of runs, mean ± std over seeds."""

from pathlib import Path
from typing import Any

from ntksap._base import InputError, counted
from ntksap.paper.bench import Bench, Spot, how_many, ready, spots, unfinished
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.plan import Panel, Plan, Row, sparsity_at
from ntksap.report import Cell, accuracy_figure, cells, read_folder, save_figure, write_report
from ntksap.runs import DENSE, run


def accuracy(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Train every network of the plan; those that another plan has trained with the same settings are reused."""
    entries: list[Entry] = []
    missing: list[tuple[str, str, str]] = []
    wanted: dict[str, list[Spot]] = {}
    for panel in plan.panels:
        rows, reasons = ready(panel, bench, training=True)
        missing += [(panel.name, row, reason) for row, reason in reasons.items()]
        wanted[panel.name] = list(spots(panel, [Row(DENSE), *rows])) if rows else []
    runs = bench.runs("runs")
    settings = [spot.settings for found in wanted.values() for spot in found]
    outcome = bench.execute(settings, runs, bench.place, run)
    figures = []
    for panel in plan.panels:
        missing += unfinished(bench, panel, wanted[panel.name], outcome)
        found = [(outcome.results.get(spot.settings.name), spot.row) for spot in wanted[panel.name]]
        table = cells([_as_shown(result, panel, row) for result, row in found if result is not None])
        entries += [_entry(panel, cell) for cell in table]
        if any(cell.method != DENSE for cell in table):
            title = f"{panel.model} on {panel.data}, {counted(panel.training.epochs, 'epoch')}"
            quantity = "test accuracy (%)" if panel.metric == "top1" else "training accuracy (%)"
            figures += save_figure(accuracy_figure(table, title, quantity), folder, f"accuracy-{panel.name}")
    if settings:
        _report(runs, folder, {one.name for one in settings})
    everything = [spot for found in wanted.values() for spot in found]
    return Comparison(plan, entries, missing, figures, how_many(bench, everything, outcome))


def _as_shown(result: dict[str, Any], panel: Panel, row: Row) -> dict[str, Any]:
    """Return a result under the label of its row, with the panel's metric instead of the accuracy."""
    return {**result, "method": row.name, "top1": result[panel.metric]}


def _entry(panel: Panel, cell: Cell) -> Entry:
    step = next((step for step in panel.steps if sparsity_at(step) == cell.sparsity), panel.reported_steps[0])
    return Entry(
        panel=panel.name,
        row=cell.method,
        column="dense" if cell.method == DENSE else f"{100 * cell.sparsity:.2f} %",
        ours=cell.mean,
        std=cell.std if cell.seeds > 1 else None,
        paper=panel.paper(cell.method, step),
        paper_std=panel.paper_std(cell.method, step),
        measure="difference",
    )


def _report(runs: Path, folder: Path, names: set[str]) -> None:
    """Write the HTML report on the runs of this plan alone."""
    try:
        found = read_folder(runs)
    except InputError:  # nothing has begun
        return
    write_report(
        type(found)(folder.name, [one for one in found.runs if one.name in names], {}, []), folder / "report.html"
    )
