"""Accuracy by method and sparsity: mean ± std over seeds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ntksap.runs import DENSE, label_of

LEVEL = 1e-9
"""Means (in percent) that differ by less are equal up to rounding."""


@dataclass(frozen=True)
class Cell:
    """One method at one sparsity over its seeds. Accuracies in percent; std of one seed is 0.

    ``kept`` (weights) and ``test_images`` are None where a result does not say; ``by_seed`` are the accuracies. What
    follows is None unless it was measured (`ntksap.runs.measuring`): bytes of a file, median seconds of inference of 1
    and of 64 inputs and of a training step of 64, and how many times faster than the dense network each is.
    """

    method: str
    sparsity: float
    mean: float
    std: float
    seeds: int
    train_accuracy: float
    inference_flops: float
    prune_seconds: float
    train_seconds: float
    collapsed: int
    kept: float | None = None
    test_images: int | None = None
    by_seed: dict[int, float] = field(default_factory=dict)
    bytes: float | None = None
    inference_1: float | None = None
    inference_64: float | None = None
    step_64: float | None = None
    speedup_inference_1: float | None = None
    speedup_inference_64: float | None = None
    speedup_step_64: float | None = None


MEASURED = (
    "bytes", "inference_1", "inference_64", "step_64",
    "speedup_inference_1", "speedup_inference_64", "speedup_step_64",
)  # fmt: skip


def cells(results: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Return a cell for each method and sparsity, methods in the order of their first result, sparsities ascending."""
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    order: dict[str, int] = {}
    for result in results:
        label = label_of(result["method"], result["sanity"])
        order.setdefault(label, len(order))
        groups.setdefault((label, result["sparsity"]), []).append(result)
    return [
        _cell(label, sparsity, group)
        for (label, sparsity), group in sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    ]


def _cell(label: str, sparsity: float, group: Sequence[Mapping[str, Any]]) -> Cell:
    def mean(key: str) -> float:
        return statistics.fmean(result[key] for result in group)

    top1 = [100 * result["top1"] for result in group]
    images = {result.get("test_images") for result in group}
    timings = [result["timings"] for result in group if result.get("timings")]
    return Cell(
        method=label,
        sparsity=sparsity,
        mean=statistics.fmean(top1),
        std=statistics.stdev(top1) if len(top1) > 1 else 0.0,
        seeds=len(top1),
        train_accuracy=100 * mean("train_accuracy"),
        inference_flops=mean("inference_flops"),
        prune_seconds=mean("prune_seconds"),
        train_seconds=mean("train_seconds"),
        collapsed=sum(bool(result["collapsed"]) for result in group),
        kept=mean("kept") if all(result.get("kept") is not None for result in group) else None,
        test_images=images.pop() if len(images) == 1 else None,
        by_seed={result["seed"]: accuracy for result, accuracy in zip(group, top1, strict=True)},
        **({key: statistics.fmean(one[key] for one in timings) for key in MEASURED} if timings else {}),
    )


def ranks(table: Sequence[Cell]) -> dict[tuple[str, float], int]:
    """Return the place (1 = best mean) of each method among those of its sparsity; equal means share the better place.

    The dense reference has none.
    """
    pruned = [cell for cell in table if cell.method != DENSE]
    return {
        (cell.method, cell.sparsity): 1
        + sum(other.sparsity == cell.sparsity and other.mean > cell.mean + LEVEL for other in pruned)
        for cell in pruned
    }


def formatted(cell: Cell) -> str:
    """Return "mean ± std", or the mean alone for a single seed."""
    return f"{cell.mean:.2f} ± {cell.std:.2f}" if cell.seeds > 1 else f"{cell.mean:.2f}"
