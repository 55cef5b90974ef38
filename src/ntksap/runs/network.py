"""The network that a run trains, as its settings and masks say."""

import torch
from torch import nn

from ntksap import models
from ntksap._base import seed_of
from ntksap.compaction import compact
from ntksap.pruning import CHANNEL, Masks
from ntksap.runs.settings import THIN, Settings
from ntksap.runs.thin import thin_model


def network_of(
    settings: Settings, masks: Masks | None, input_shape: tuple[int, int, int], num_classes: int
) -> tuple[nn.Module, Masks | None]:
    """Return the module with its initial weights, and the masks that are at work in it.

    Where whole channels are removed, it is the smaller module without them, which needs no masks: training it is
    training the whole one under masks, except for sums of zeros, in less time.
    """
    seed = seed_of(settings.seed, "reinit") if settings.sanity == "reinit" else settings.seed
    name = model_name(settings, input_shape, num_classes)
    model = models.build(name, num_classes=num_classes, input_shape=input_shape, seed=seed)
    if masks is not None and masks.weights and settings.sanity != "reinit":
        masks.load_weights(model)
    if masks is not None and settings.pattern == CHANNEL:
        masks.attach(model)  # which also rescales, if they were made for that
        return compact(model, masks, torch.ones(1, *input_shape, device="cpu")), None
    return model, masks


def model_name(settings: Settings, input_shape: tuple[int, int, int], num_classes: int) -> str:
    """Return the model of the table that a run builds: its own, or the thin one of its budget."""
    if settings.method != THIN:
        return settings.model
    what = settings.model, settings.sparsity, settings.budget, settings.allocation
    return thin_model(*what, input_shape, num_classes).name
