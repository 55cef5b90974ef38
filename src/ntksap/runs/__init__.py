"""A run on disk, and many of them: settings, folders, sweeps, stores, spectra."""

from ntksap.runs.execution import run
from ntksap.runs.folder import Place, Progress, read_result
from ntksap.runs.local_sweep import sweep
from ntksap.runs.mask_runs import prune_only
from ntksap.runs.masking import make_masks, pruning_data
from ntksap.runs.ray_sweep import sweep_ray
from ntksap.runs.settings import DENSE, Pruning, Settings, label_of, pruning_for, settings_for
from ntksap.runs.spectra import spectra_during, spectrum_facts, spectrum_inputs
from ntksap.runs.store import Store
from ntksap.runs.work import Event, Task

__all__ = [
    "DENSE",
    "Event",
    "Place",
    "Progress",
    "Pruning",
    "Settings",
    "Store",
    "Task",
    "label_of",
    "make_masks",
    "prune_only",
    "pruning_data",
    "pruning_for",
    "read_result",
    "run",
    "settings_for",
    "spectra_during",
    "spectrum_facts",
    "spectrum_inputs",
    "sweep",
    "sweep_ray",
]
