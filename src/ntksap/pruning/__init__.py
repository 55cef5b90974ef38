"""From scores to masks: masks, selection, schedules, the probe, and the loop over rounds."""

from ntksap.pruning import interchange
from ntksap.pruning.allocation import (
    RULES,
    Allocation,
    Floor,
    Shapes,
    allocation_of,
    blocks_of,
    classifier_of,
    erk_logits,
    floor_of,
    named_counts,
    shared,
)
from ntksap.pruning.arguments import (
    check_data,
    check_inputs,
    check_module,
    checked_shape,
    checked_whole,
    explain_input_failures,
    explained,
)
from ntksap.pruning.collapse import warn_of_collapse
from ntksap.pruning.mask_file import write_mask_file
from ntksap.pruning.masks import Masks, without_followers
from ntksap.pruning.patterns import CHANNEL, Channel, Pattern, pattern_named
from ntksap.pruning.places import PLACES
from ntksap.pruning.probe import Batch, Data, MakeInputs, Probe, one_input
from ntksap.pruning.regrowth import Regrow, Regrowth, check_regrows, fraction_at, moved
from ntksap.pruning.rescale import Rescale, rescale_named
from ntksap.pruning.rounds import Pruner, Score, first_round, prune_rounds
from ntksap.pruning.sanity import CHECKS, Sanity, shuffled
from ntksap.pruning.schedules import Schedule, density_of, kept_of, schedule_named
from ntksap.pruning.selection import select
from ntksap.pruning.selector import Selector
from ntksap.pruning.sparse_file import load_sparse, save_sparse
from ntksap.pruning.trainer import Train, trainer_of

__all__ = [
    "CHANNEL",
    "CHECKS",
    "PLACES",
    "RULES",
    "Allocation",
    "Batch",
    "Channel",
    "Data",
    "Floor",
    "MakeInputs",
    "Masks",
    "Pattern",
    "Probe",
    "Pruner",
    "Regrow",
    "Regrowth",
    "Rescale",
    "Sanity",
    "Schedule",
    "Score",
    "Selector",
    "Shapes",
    "Train",
    "allocation_of",
    "blocks_of",
    "check_data",
    "check_inputs",
    "check_module",
    "check_regrows",
    "checked_shape",
    "checked_whole",
    "classifier_of",
    "density_of",
    "erk_logits",
    "explain_input_failures",
    "explained",
    "first_round",
    "floor_of",
    "fraction_at",
    "interchange",
    "kept_of",
    "load_sparse",
    "moved",
    "named_counts",
    "one_input",
    "pattern_named",
    "prune_rounds",
    "rescale_named",
    "save_sparse",
    "schedule_named",
    "select",
    "shared",
    "shuffled",
    "trainer_of",
    "warn_of_collapse",
    "without_followers",
    "write_mask_file",
]
