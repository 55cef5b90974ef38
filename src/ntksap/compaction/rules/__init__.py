"""What each operator does to channels; importing this fills the table."""

from ntksap.compaction.rules import attention, convolution, elementwise, linear, norms, reductions, shape
from ntksap.compaction.rules.apart import follow_apart
from ntksap.compaction.rules.table import RULES, Operator, Rule, rule

__all__ = [
    "RULES",
    "Operator",
    "Rule",
    "attention",
    "convolution",
    "elementwise",
    "follow_apart",
    "linear",
    "norms",
    "reductions",
    "rule",
    "shape",
]
