"""Smaller modules: the graph, its channels and how they are coupled, and cutting them out."""

from ntksap.compaction.channels import channel_masks
from ntksap.compaction.groups import ChannelGroup, ChannelGroups, Member, channel_groups
from ntksap.compaction.plan import plan_compaction
from ntksap.compaction.recipe import Recipe, load_compact, load_recipe, save_recipe
from ntksap.compaction.rules import Operator, rule
from ntksap.compaction.selection import channel_scores, select_channels
from ntksap.compaction.selector import Budget, channel_selector, check_budget
from ntksap.compaction.smaller import compact
from ntksap.compaction.steps import ANYWHERE, Kernels, Step, read_steps
from ntksap.compaction.uses import weight_uses

__all__ = [
    "ANYWHERE",
    "Budget",
    "ChannelGroup",
    "ChannelGroups",
    "Kernels",
    "Member",
    "Operator",
    "Recipe",
    "Step",
    "channel_groups",
    "channel_masks",
    "channel_scores",
    "channel_selector",
    "check_budget",
    "compact",
    "load_compact",
    "load_recipe",
    "plan_compaction",
    "read_steps",
    "rule",
    "save_recipe",
    "select_channels",
    "weight_uses",
]
