"""Selection of the largest of 10⁸ scores: against a full sort."""

import torch
from torch import Tensor

import ntksap
from benchmarks.harness import Job

LAYERS, SIZE, KEPT = 4, 25_000_000, 5_000_000


def textbook(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sort all scores, ties to the lower index; the best become True."""
    every = torch.cat(list(scores.values()))
    best = every.sort(descending=True, stable=True).indices[:KEPT]
    keep = torch.zeros(len(every), dtype=torch.bool)
    keep[best] = True
    return dict(zip(scores, keep.split(SIZE), strict=True))


def selection() -> Job:
    generator = torch.Generator().manual_seed(0)
    scores = {str(layer): torch.rand(SIZE, generator=generator) for layer in range(LAYERS)}
    return Job(
        name="selection",
        title="selection of 5·10⁶ of 10⁸ scores",
        target="≥ 3×, extra memory ≤ 2 × 381 MiB of scores",
        textbook=lambda: textbook(scores),
        product=lambda: ntksap.select(scores, KEPT),
        agreement=lambda theirs, ours: {"weights_that_differ": sum(int((theirs[n] != ours[n]).sum()) for n in scores)},
    )
