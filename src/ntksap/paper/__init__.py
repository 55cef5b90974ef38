"""The paper's tables and figures, carried out again: a plan per table or figure, ours beside the paper's."""

from ntksap.paper.comparison import Comparison
from ntksap.paper.plan import SCALES, Plan, plan_names, read_plan
from ntksap.paper.reproduction import reproduce

__all__ = [
    "SCALES",
    "Comparison",
    "Plan",
    "plan_names",
    "read_plan",
    "reproduce",
]
