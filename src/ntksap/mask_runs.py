"""Runs that end with the masks: what a pruned network would cost needs no training, and often no data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ntksap import models
from ntksap.cost import cost
from ntksap.data import load, pruning_batches
from ntksap.methods import method_named
from ntksap.runs import Place, Progress, carry_out, facts, pruned
from ntksap.settings import Settings, versions


def prune_only(
    settings: Settings,
    root: Path,
    place: Place,
    on_progress: Callable[[Progress], object],
    *,
    input_shape: tuple[int, int, int],
    classes: int,
) -> dict[str, Any]:
    """Prune as `ntksap.runs.run` would, resumable in the same way, and return what is known of the masks.

    Data is read only where the method needs it; the shapes say what the model looks like without it.
    """

    def work(
        settings: Settings, folder: Path, place: Place, on_progress: Callable[[Progress], object]
    ) -> dict[str, Any]:
        model = models.build(settings.model, num_classes=classes, input_shape=input_shape, seed=settings.seed)
        batches = []
        if not method_named(settings.method).data_free:
            data = load(settings.data, place.data_dir, download=place.download, workers=place.workers)
            batches = pruning_batches(
                data, per_class=settings.samples_per_class, batch_size=settings.prune_batch, seed=settings.seed
            )
        masks = pruned(settings, folder, model, input_shape, batches, place, on_progress)
        flops = cost(model, masks, input_shape=input_shape)
        return {**facts(masks, flops), "threads": torch.get_num_threads(), "versions": versions()}

    return carry_out(work, settings, root, place, on_progress)
