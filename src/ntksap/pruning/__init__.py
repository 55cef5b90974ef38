"""From scores to masks: masks, selection, schedules, the probe, and the loop over rounds."""

from ntksap.pruning import interchange
from ntksap.pruning.arguments import (
    check_data,
    check_inputs,
    check_module,
    checked_shape,
    checked_whole,
    explained,
)
from ntksap.pruning.masks import Masks
from ntksap.pruning.probe import Batch, Data, MakeInputs, Probe
from ntksap.pruning.rounds import Pruner, Score, first_round, prune_rounds
from ntksap.pruning.sanity import CHECKS, Sanity, shuffled
from ntksap.pruning.schedules import Schedule, density_of, kept_of, schedule_named
from ntksap.pruning.selection import select

__all__ = [
    "CHECKS",
    "Batch",
    "Data",
    "MakeInputs",
    "Masks",
    "Probe",
    "Pruner",
    "Sanity",
    "Schedule",
    "Score",
    "check_data",
    "check_inputs",
    "check_module",
    "checked_shape",
    "checked_whole",
    "density_of",
    "explained",
    "first_round",
    "interchange",
    "kept_of",
    "prune_rounds",
    "schedule_named",
    "select",
    "shuffled",
]
