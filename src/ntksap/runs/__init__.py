"""A run on disk, and many of them: settings, folders, sweeps, stores, spectra."""

from ntksap.runs.budgets import BudgetRow, budget_rows, budgets_to_csv
from ntksap.runs.comparison import OnEvent, Outcome, collect, grid, options_by_method, prunings
from ntksap.runs.engines import Engine
from ntksap.runs.execution import prune_only, run
from ntksap.runs.folder import OnProgress, Place, Progress, read_result
from ntksap.runs.local_sweep import sweep
from ntksap.runs.masking import make_masks, pruning_data
from ntksap.runs.measuring import checked_timings, measure
from ntksap.runs.ray_sweep import sweep_ray
from ntksap.runs.settings import DENSE, THIN, Pruning, Settings, label_of, pruning_for, settings_for
from ntksap.runs.spectra import spectra_at_init, spectra_during, spectrum_inputs
from ntksap.runs.store import Store
from ntksap.runs.work import Event, Task

__all__ = [
    "DENSE",
    "THIN",
    "BudgetRow",
    "Engine",
    "Event",
    "OnEvent",
    "OnProgress",
    "Outcome",
    "Place",
    "Progress",
    "Pruning",
    "Settings",
    "Store",
    "Task",
    "budget_rows",
    "budgets_to_csv",
    "checked_timings",
    "collect",
    "grid",
    "label_of",
    "make_masks",
    "measure",
    "options_by_method",
    "prune_only",
    "pruning_data",
    "pruning_for",
    "prunings",
    "read_result",
    "run",
    "settings_for",
    "spectra_at_init",
    "spectra_during",
    "spectrum_inputs",
    "sweep",
    "sweep_ray",
]
