"""Prune neural networks before training them.

>>> import ntksap
>>> model = ntksap.models.build("lenet-300-100")
>>> masks = ntksap.prune(model, sparsity=0.9, method="synflow", input_shape=(1, 28, 28))
>>> attached = masks.attach(model)
"""

from ntksap import methods, models
from ntksap._base import (
    ApproximationWarning,
    CollapseError,
    CollapseWarning,
    InputError,
    MaskError,
    MemoryWarning,
    NotPrunableWarning,
    NtksapError,
    ScoreError,
)
from ntksap._prune import prune, prune_steps
from ntksap._version import __version__
from ntksap.analysis import Cost, Diagnosis, Kernel, cost, diagnose, ntk, spectrum_distance
from ntksap.net import Net
from ntksap.net.kernels import sparse_kernels
from ntksap.pruning import Masks, Probe, Round, interchange, select

__all__ = [
    "ApproximationWarning",
    "CollapseError",
    "CollapseWarning",
    "Cost",
    "Diagnosis",
    "InputError",
    "Kernel",
    "MaskError",
    "Masks",
    "MemoryWarning",
    "Net",
    "NotPrunableWarning",
    "NtksapError",
    "Probe",
    "Round",
    "ScoreError",
    "__version__",
    "cost",
    "diagnose",
    "interchange",
    "methods",
    "models",
    "ntk",
    "prune",
    "prune_steps",
    "select",
    "sparse_kernels",
    "spectrum_distance",
]
