"""What pruning, inference and training cost with each method at each sparsity, in multiply-adds."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import nn

from ntksap.analysis import PAPER_PASSES, Budget, cost, measured_budget, paper_budget
from ntksap.data import Dataset
from ntksap.runs.comparison import prunings
from ntksap.runs.folder import OnProgress, Progress
from ntksap.runs.masking import make_masks, pruning_data
from ntksap.runs.settings import DENSE


@dataclass(frozen=True)
class BudgetRow:
    """One method at one sparsity; ``paper`` is None where the paper does not say how to count it."""

    method: str
    sparsity: float
    inference: int
    paper: Budget | None
    evaluated: Budget

    def values(self) -> dict[str, Any]:
        """Return the row as plain values, one per column."""
        found: dict[str, Any] = {"method": self.method, "sparsity": self.sparsity, "inference_flops": self.inference}
        for name, budget in (("paper", self.paper), ("evaluated", self.evaluated)):
            for part in ("pruning", "training", "total"):
                found[f"{name}_{part}_flops"] = getattr(budget, part) if budget else None
        return found


def budget_rows(
    model: nn.Module,
    methods: Sequence[str],
    sparsities: Sequence[float],
    *,
    epochs: int,
    images: int,
    input_shape: tuple[int, ...],
    data: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    on_progress: OnProgress = lambda progress: None,
) -> list[BudgetRow]:
    """Prune with each method to each sparsity and count multiply-adds; the first row is the dense net.

    Args:
        model: with its initial weights.
        methods, sparsities: each method prunes to each sparsity, since the cost of an inference depends on the masks.
        epochs, images: training takes this many passes over this many images.
        input_shape: the shape of one input, without the batch.
        data: a data set, for the methods that need one.
        options: options of single methods, for those that have them.
        seed: decides the draws.
        on_progress: told before each pruning.
    """
    wanted = prunings(methods, sparsities, seed=seed, options=options, data=data.name if data else None)
    plan: dict[str, Any] = {"epochs": epochs, "images": images}
    dense = cost(model, input_shape=input_shape).dense
    evaluated = measured_budget(model, "random", **plan, input_shape=input_shape)
    rows = [BudgetRow(DENSE, 0.0, dense, paper_budget("random", dense, dense, **plan), evaluated)]
    for method, group in groupby(wanted, key=lambda pruning: pruning.method):
        own = list(group)
        batches = pruning_data(own[0], data) if data else None
        evaluated = measured_budget(
            model, method, **plan, input_shape=input_shape, seed=seed, data=batches, **own[0].options
        )
        for pruning in own:
            label = f"{method} at {100 * pruning.sparsity:.4g} %"
            on_progress(Progress("pruning", len(rows) - 1, len(wanted), "mask", name=label))
            sparse = cost(model, make_masks(pruning, model, input_shape, data), input_shape=input_shape).sparse
            paper = paper_budget(method, dense, sparse, **plan) if method in PAPER_PASSES else None
            rows.append(BudgetRow(method, pruning.sparsity, sparse, paper, evaluated))
    on_progress(Progress("pruning", len(wanted), len(wanted), "mask"))
    return rows


def budgets_to_csv(rows: Sequence[BudgetRow]) -> str:
    """Return the rows as CSV text, one line each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].values(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values() for row in rows)
    return text.getvalue()
