"""From scores to masks: masks, selection, schedules, the probe, and the loop over rounds."""

from ntksap.pruning import interchange
from ntksap.pruning.masks import Masks
from ntksap.pruning.probe import Batch, Data, MakeInputs, Probe
from ntksap.pruning.rounds import Pruner, Round, Score, check_rounds, prune_rounds
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
    "Round",
    "Sanity",
    "Schedule",
    "Score",
    "check_rounds",
    "density_of",
    "interchange",
    "kept_of",
    "prune_rounds",
    "schedule_named",
    "select",
    "shuffled",
]
