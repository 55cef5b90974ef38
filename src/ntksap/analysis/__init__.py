"""What a network or its masks are like: tangent kernel, spectrum, cost, budget, diagnosis."""

from ntksap.analysis.budget import PAPER_PASSES, Budget, measured_budget, paper_budget
from ntksap.analysis.diagnosis import Diagnosis, diagnose
from ntksap.analysis.jacobian import Jacobian
from ntksap.analysis.kernel_change import KernelChange
from ntksap.analysis.multiply_adds import Cost, cost
from ntksap.analysis.spectrum import Kernel, spectrum_distance
from ntksap.analysis.tangent_kernel import ntk

__all__ = [
    "PAPER_PASSES",
    "Budget",
    "Cost",
    "Diagnosis",
    "Jacobian",
    "Kernel",
    "KernelChange",
    "cost",
    "diagnose",
    "measured_budget",
    "ntk",
    "paper_budget",
    "spectrum_distance",
]
