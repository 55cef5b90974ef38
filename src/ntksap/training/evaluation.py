"""What a model gets right: shares of batches over processes, sums over them, and the test."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ntksap.data import Split
from ntksap.training.state import TrainState


@torch.no_grad()
def evaluate(state: TrainState, split: Split) -> tuple[float, float, float]:
    """Return mean cross-entropy, top-1 and top-5 accuracy (see `Epoch`) over all images of ``split``."""
    totals = Totals(state)
    modes = {module: module.training for module in state.model.modules()}
    state.model.eval()
    try:
        for images, labels, weight in shares(state, split):
            logits = state.logits(images)
            totals.add(cross_entropy(logits, labels), logits, labels, weight)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return totals.means()


def shares(state: TrainState, split: Split, **how: Any) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield this process's share of each batch, and a weight: the mean over processes of weight × (the mean loss over a
    share) is the mean loss over the batch. It is 0 for the image that stands in for an empty share, and 1 for one
    process alone.
    """
    ranks, size = state.ranks, state.recipe.batch
    batches = split.batches(size, device=state.device, part=(ranks.rank, ranks.size), **how)
    for index, (images, labels) in enumerate(batches):
        count = min(size, len(split) - index * size)
        yield images, labels, len(ranks.share(count)) * ranks.size / count


class Totals:
    """Sums over an epoch and all processes. They stay on the device, so that no step waits for the GPU."""

    def __init__(self, state: TrainState) -> None:
        self.ranks = state.ranks
        self.sums = torch.zeros(4, device=state.device)  # loss, top-1, top-5, images; counts are exact up to 2²⁴

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, weight: float) -> None:
        """Add a share of a batch: its mean loss, logits (N, classes) and labels (N); nothing if it has no weight."""
        if weight == 0:
            return
        # topk breaks ties in some order; counting the logits above the label's would call constant outputs all right
        best = logits.topk(5 if logits.shape[1] >= 5 else 1).indices
        hits = best == labels[:, None]
        self.sums += torch.stack([loss * len(labels), hits[:, 0].sum(), hits.sum(), torch.full_like(loss, len(labels))])

    def means(self) -> tuple[float, float, float]:
        """Return mean loss, top-1 and top-5 accuracy."""
        *sums, count = self.ranks.add(self.sums).cpu().double().tolist()
        loss, top1, top5 = (total / count for total in sums)
        return loss, top1, top5
