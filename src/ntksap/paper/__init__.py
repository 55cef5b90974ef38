"""The paper's tables and figures, carried out again: a plan per table or figure, ours beside the paper's."""

from ntksap.paper.bench import Bench, Outcome
from ntksap.paper.comparison import Comparison
from ntksap.paper.kinds import reproduce
from ntksap.paper.plan import SCALES, Plan, plan_names, read_plan

__all__ = [
    "SCALES",
    "Bench",
    "Comparison",
    "Outcome",
    "Plan",
    "plan_names",
    "read_plan",
    "reproduce",
]
