"""Runs that end with the masks: what a pruned network would cost needs no training, and often no data."""

from pathlib import Path
from typing import Any

import torch

from ntksap import models
from ntksap._base import Ranks
from ntksap.analysis import cost
from ntksap.methods import method_named
from ntksap.runs.execution import facts, run_data
from ntksap.runs.folder import OnProgress, Place, carry_out
from ntksap.runs.masking import make_masks
from ntksap.runs.settings import Settings


def prune_only(
    settings: Settings,
    root: Path,
    place: Place,
    on_progress: OnProgress,
    *,
    input_shape: tuple[int, int, int],
    classes: int,
) -> dict[str, Any]:
    """Prune as `ntksap.runs.execution.run` would, resumable in the same way, and return what is known of the masks.

    Data is read only where the method needs it; the shapes say what the model looks like without it.
    """

    def work(settings: Settings, folder: Path, place: Place, on_progress: OnProgress, ranks: Ranks) -> dict[str, Any]:
        model = models.build(settings.model, num_classes=classes, input_shape=input_shape, seed=settings.seed)
        needs = not method_named(settings.method).data_free
        masks = make_masks(
            settings,
            model,
            input_shape,
            run_data(settings, place) if needs else None,
            recipe=settings.recipe,
            about={"model": settings.model, "classes": classes},
            folder=folder,
            place=place,
            on_progress=on_progress,
            ranks=ranks,
        )
        flops = cost(model, masks, input_shape=input_shape)
        return {**facts(masks, flops), "threads": torch.get_num_threads()}

    return carry_out(work, settings, root, place, on_progress)
