"""A run on disk, and many of them: settings, folders, sweeps, stores, spectra."""

from ntksap.runs.execution import run
from ntksap.runs.folder import Place, Progress, read_result
from ntksap.runs.local_sweep import sweep
from ntksap.runs.mask_runs import prune_only
from ntksap.runs.pruning_data import pruning_data
from ntksap.runs.ray_sweep import sweep_ray
from ntksap.runs.settings import DENSE, Settings, label_of, settings_for
from ntksap.runs.spectra import spectra_during, spectrum_facts, spectrum_inputs
from ntksap.runs.store import Store
from ntksap.runs.work import Event, Task

__all__ = [
    "DENSE",
    "Event",
    "Place",
    "Progress",
    "Settings",
    "Store",
    "Task",
    "label_of",
    "prune_only",
    "pruning_data",
    "read_result",
    "run",
    "settings_for",
    "spectra_during",
    "spectrum_facts",
    "spectrum_inputs",
    "sweep",
    "sweep_ray",
]
