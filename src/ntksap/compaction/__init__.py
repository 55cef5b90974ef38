"""Smaller modules: the graph, its channels and how they are coupled, and cutting them out."""

from ntksap.compaction.channels import channel_masks
from ntksap.compaction.groups import ChannelGroup, ChannelGroups, Member, channel_groups
from ntksap.compaction.plan import plan_compaction
from ntksap.compaction.recipe import Recipe, load_compact, load_recipe, save_recipe
from ntksap.compaction.rules import Place, rule
from ntksap.compaction.selection import channel_scores, select_channels
from ntksap.compaction.smaller import compact
from ntksap.compaction.steps import ANYWHERE, Kernels, Step, read_steps

__all__ = [
    "ANYWHERE",
    "ChannelGroup",
    "ChannelGroups",
    "Kernels",
    "Member",
    "Place",
    "Recipe",
    "Step",
    "channel_groups",
    "channel_masks",
    "channel_scores",
    "compact",
    "load_compact",
    "load_recipe",
    "plan_compaction",
    "read_steps",
    "rule",
    "save_recipe",
    "select_channels",
]
