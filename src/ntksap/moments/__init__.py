"""Second moments of a network over all its weights and inputs, carried through the code of any module.

`rule` adds to the table of rules; the files beside this one are the table.
"""

from ntksap.moments import attention, norms, pooling, shapes  # noqa: F401  they fill the table
from ntksap.moments.activations import elementwise
from ntksap.moments.linear import product
from ntksap.moments.table import RULES, MomentTensor, NoRuleWarning, module_rules, moments_of, rule
from ntksap.moments.value import Moments, Weight, certain, fixed, noise

__all__ = [
    "RULES",
    "MomentTensor",
    "Moments",
    "NoRuleWarning",
    "Weight",
    "certain",
    "elementwise",
    "fixed",
    "module_rules",
    "moments_of",
    "noise",
    "product",
    "rule",
]
