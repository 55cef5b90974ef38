"""Multiply-adds: of one inference, of pruning, and of pruning and training together. Nothing is trained."""

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ntksap import models
from ntksap.analysis import PAPER_PASSES, cost, paper_budget
from ntksap.paper.bench import Bench, pruned_masks, ready
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.flops_figure import flops_figure
from ntksap.paper.plan import Panel, Plan, Row, sparsity_at
from ntksap.report import save_figure


def pruning_flops(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Count pruning as the paper does: passes through the dense network."""
    entries, missing = [], []
    for panel in plan.panels:
        model = models.build(panel.model, num_classes=panel.classes, input_shape=panel.input_shape)
        dense = cost(model, input_shape=panel.input_shape).dense
        for row in panel.rows:
            if row.method not in PAPER_PASSES:
                missing.append((panel.name, row.name, "the paper does not count it"))
                continue
            ours = PAPER_PASSES[row.method] * dense / panel.unit
            entries.append(Entry(panel.name, row.name, panel.columns[0], ours, panel.paper(row.name, 0)))
    return Comparison(plan, entries, missing)


def inference_flops(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Prune, and count one inference of what is left."""
    return _counted(plan, bench, folder, total=False)


def total_flops(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Prune, and count pruning and the training of what is left, as the paper does."""
    return _counted(plan, bench, folder, total=True)


def _counted(plan: Plan, bench: Bench, folder: Path, *, total: bool) -> Comparison:
    entries: list[Entry] = []
    missing: list[tuple[str, str, str]] = []
    figures: list[str] = []
    for panel in plan.panels:
        rows, reasons = ready(panel, bench, training=False)
        missing += [(panel.name, row, reason) for row, reason in reasons.items()]
        found, outcome = pruned_masks(bench, panel, rows)
        numbers: dict[tuple[str, int], list[float]] = {}
        for spot in found:
            if (name := spot.settings.name) not in outcome.results:
                missing.append((panel.name, spot.title, outcome.failed[name]))
                continue
            value = _value(panel, spot.row, outcome.results[name], total=total)
            numbers.setdefault((spot.row.name, spot.step), []).append(value)
        made = [_entry(panel, row, step, values) for (row, step), values in numbers.items()]
        entries += made
        if made:
            figures += save_figure(flops_figure(made, panel, plan.title), folder, f"flops-{panel.name}")
    return Comparison(plan, entries, missing, figures)


def _value(panel: Panel, row: Row, result: dict[str, Any], *, total: bool) -> float:
    sparse: int = result["inference_flops"]
    if not total:
        return sparse / panel.unit
    budget = paper_budget(row.method, result["dense_flops"], sparse, epochs=panel.training.epochs, images=panel.images)
    return budget.total / panel.unit


def _entry(panel: Panel, row: str, step: int, values: list[float]) -> Entry:
    return Entry(
        panel=panel.name,
        row=row,
        column=f"{100 * sparsity_at(step):.2f} %",
        ours=fmean(values),
        std=stdev(values) if len(values) > 1 else None,
        paper=panel.paper(row, step),
    )
