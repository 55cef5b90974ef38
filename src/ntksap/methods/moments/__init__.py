"""Second moments of a network over all its weights and inputs, carried through the code of any module.

`rule` adds to the table of rules; the files beside this one are the table.
"""

from ntksap.methods.moments import attention, norms, pooling, recurrent, shapes  # noqa: F401  they fill the table
from ntksap.methods.moments.activations import elementwise
from ntksap.methods.moments.initial import initial_moments
from ntksap.methods.moments.linear import product
from ntksap.methods.moments.table import MOVES, RULES, moments_of, rule
from ntksap.methods.moments.tensor import MomentTensor, checked, module_rules, refusal
from ntksap.methods.moments.trace import trace_of
from ntksap.methods.moments.uniform import Uniform
from ntksap.methods.moments.value import Known, Moments, Weight, certain, fixed, noise

__all__ = [
    "MOVES",
    "RULES",
    "Known",
    "MomentTensor",
    "Moments",
    "Uniform",
    "Weight",
    "certain",
    "checked",
    "elementwise",
    "fixed",
    "initial_moments",
    "module_rules",
    "moments_of",
    "noise",
    "product",
    "refusal",
    "rule",
    "trace_of",
]
