"""Spectra of the neural tangent kernel during training, as they are or relative to the smallest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ntksap._base import read_sealed, write_json, write_sealed
from ntksap.paper.bench import Bench, how_many, ready, spots, unfinished
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.plan import Panel, Plan, Row, sparsity_at
from ntksap.paper.spectra_at_init import only_panel
from ntksap.report import epochs_figure, methods_figure, save_figure
from ntksap.runs import DENSE, run, spectra_during

_RATIO = (
    "The numbers are condition numbers in the paper's sense: the largest eigenvalue ÷ the mean of the smallest tenth."
)


def during_training(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Train, and compare spectra during training with the dense network's at the same epoch."""
    return _during(plan, bench, folder, "eigenvalues")


def relative_during_training(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """The same, each eigenvalue divided by the mean of the smallest tenth; a panel per method."""
    return _during(plan, bench, folder, "relative_eigenvalues")


def _during(plan: Plan, bench: Bench, folder: Path, key: str) -> Comparison:
    panel = only_panel(plan)
    rows, reasons = ready(panel, bench, training=True)
    missing = [(panel.name, row, reason) for row, reason in reasons.items()]
    wanted = (
        list(spots(replace(panel, seeds=panel.seeds[:1], steps=panel.steps[:1]), [Row(DENSE), *rows])) if rows else []
    )
    # Not where other plans keep their runs: those keep no checkpoints during training.
    runs, place = bench.runs("runs-with-checkpoints"), replace(bench.place, keep_epochs=panel.epochs)
    outcome = bench.execute([spot.settings for spot in wanted], runs, place, run)
    missing += unfinished(bench, panel, wanted, outcome)
    done = [spot for spot in wanted if spot.settings.name in outcome.results]
    found = {spot.row.name: _kept_during(runs / spot.settings.name, panel, bench) for spot in done}
    if not found:
        return Comparison(plan, [], missing)
    write_json(folder / "spectra.json", {"model": panel.model, "runs": found})
    draw = epochs_figure if key == "eigenvalues" else methods_figure
    title = f"{panel.model} on {panel.data}, sparsity {100 * sparsity_at(panel.steps[0]):.2f} %"
    figures = save_figure(draw(found, key, title), folder, "spectra")
    entries = [
        Entry(panel.name, name, f"epoch {one['epoch']}", _largest_ratio(one))
        for name, spectra in found.items()
        for one in spectra["epochs"]
    ]
    return Comparison(plan, entries, missing, figures, [_RATIO, *how_many(bench, wanted, outcome)])


def _largest_ratio(one: dict[str, Any]) -> float:
    return float(one["relative_eigenvalues"][0])


def _kept_during(folder: Path, panel: Panel, bench: Bench) -> dict[str, Any]:
    file = folder / f"spectra-{panel.inputs}.json"
    if file.exists():
        return read_sealed(file)
    place = bench.place
    found = spectra_during(
        folder, data_dir=place.data_dir, inputs=panel.inputs, device=place.device, on_progress=bench.on_progress
    )
    write_sealed(file, found)
    return found
