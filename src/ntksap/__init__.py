"""Prune neural networks before training them.

>>> import ntksap
>>> model = ntksap.models.build("lenet-300-100")
>>> masks = ntksap.prune(model, sparsity=0.9, method="synflow", input_shape=(1, 28, 28))
>>> attached = masks.attach(model)
"""

from ntksap import interchange, methods, models
from ntksap._version import __version__
from ntksap.api import prune, prune_steps
from ntksap.cost import Cost, cost
from ntksap.diagnosis import Diagnosis, diagnose
from ntksap.errors import (
    ApproximationWarning,
    CollapseError,
    CollapseWarning,
    InputError,
    MaskError,
    MemoryWarning,
    NtksapError,
    ScoreError,
)
from ntksap.masks import Masks
from ntksap.net import Net
from ntksap.ntk import ntk
from ntksap.probe import Probe
from ntksap.pruning import Round
from ntksap.selection import select
from ntksap.sparse_kernels import sparse_kernels
from ntksap.spectrum import Kernel, spectrum_distance

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
