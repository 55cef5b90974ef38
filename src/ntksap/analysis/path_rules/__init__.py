"""What torch's functions make of numbers of paths; importing this fills the table."""

from ntksap.analysis.path_rules import attention, elementwise, pooling
from ntksap.analysis.path_rules.counts import Counts, counts

__all__ = ["Counts", "attention", "counts", "elementwise", "pooling"]
