"""What the page shows of each experiment: its figures, its tables' rows, its findings."""

from collections.abc import Mapping
from dataclasses import dataclass

from ntksap.report.experiments import Experiment
from ntksap.report.panels import Figure, Panel, accuracy_figure, density_panels, learning_panels
from ntksap.report.summary import Sentence, findings
from ntksap.report.table import Cell, ranks
from ntksap.runs import DENSE


@dataclass(frozen=True)
class View:
    """An experiment as the page shows it; ``rows`` are the cells of each method, None where there is no result."""

    title: str
    findings: list[Sentence]
    table: list[Cell]
    sparsities: list[float]
    rows: dict[str, list[Cell | None]]
    places: Mapping[tuple[str, float], int]
    dense: Cell | None
    dense_flops: float | None
    accuracy: Figure | None
    densities: list[Panel]
    learning: list[Panel]


def view_of(one: Experiment) -> View:
    """Return what the page shows of an experiment."""
    pruned = {(cell.method, cell.sparsity): cell for cell in one.table if cell.method != DENSE}
    sparsities = sorted({sparsity for _, sparsity in pruned})
    return View(
        title=one.title,
        findings=findings(one),
        table=one.table,
        sparsities=sparsities,
        rows={method: [pruned.get((method, s)) for s in sparsities] for method, _ in pruned},
        places=ranks(one.table),
        dense=next((cell for cell in one.table if cell.method == DENSE), None),
        dense_flops=one.dense_flops,
        accuracy=accuracy_figure(one) if one.table else None,
        densities=density_panels(one),
        learning=learning_panels(one),
    )
