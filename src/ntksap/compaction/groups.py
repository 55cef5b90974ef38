"""The coupled channel groups of a module, as plain values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn

from ntksap.compaction.graph import read_graph
from ntksap.compaction.ids import Ints
from ntksap.compaction.links import Links
from ntksap.compaction.rules.convolution import KERNEL
from ntksap.compaction.trial import follow_code
from ntksap.net import Inputs, unwrap


@dataclass(frozen=True)
class Member:
    """One axis of a parameter or buffer: ``units[i]`` is the unit of the group that index i belongs to, −1 for none."""

    name: str
    dim: int
    units: Ints


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that lie side by side on the same axes; each of its units is removed or kept as a whole.

    Attributes:
        size: the number of units.
        members: the axes that they lie on.
    """

    size: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class ChannelGroups:
    """What can be removed from a module, and what cannot.

    Attributes:
        groups: the coupled channel groups, in the order of the module's parameters.
        frozen: {(parameter, dimension): why none of its indices can be removed}, for every axis that has more than one.
        unknown: {operator without a rule: the modules in which it froze an axis}.
    """

    groups: tuple[ChannelGroup, ...]
    frozen: Mapping[tuple[str, int], str]
    unknown: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        lines = []
        for number, group in enumerate(self.groups):
            axes = ", ".join(f"{member.name}[{member.dim}]" for member in group.members)
            lines.append(f"group {number}: {group.size} channels on {axes}")
        shown = [(axis, why) for axis, why in self.frozen.items() if not why.startswith(KERNEL)]
        lines += [f"frozen: {name}[{dim}]: {why}" for (name, dim), why in shown]
        lines += [f"no rule: {operator} in {', '.join(where)}" for operator, where in self.unknown.items()]
        return "\n".join(lines)


def channel_groups(model: nn.Module, example_inputs: Inputs, *, inexact: Collection[str] = ()) -> ChannelGroups:
    """Return the coupled channel groups of ``model``.

    Two indices belong to one unit if removing one without the other would leave a module that does not run, or runs on
    other channels: residual streams, concatenations, depthwise and grouped convolutions, heads of attention (with all
    queries of a key), gates, tied weights, layers that are used twice.

    Args:
        model: any module that ``torch.export`` can read. It is not changed.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
        inexact: operators that freeze the axis they work along because their result depends on its size
            (``"layer_norm"``, ``"group_norm"``, ``"rms_norm"``, ``"mean"``), and that may change instead.

    Raises `InputError` if the graph cannot be read.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> print(channel_groups(model, torch.ones(1, 3)))
    group 0: 4 channels on 0.weight[0], 0.bias[0], 2.weight[1]
    frozen: 0.weight[1]: combined with an axis of fixed size by linear in 0
    frozen: 2.weight[0]: it is an output of the module
    frozen: 2.bias[0]: it is an output of the module
    """
    model = unwrap(model)
    return groups_of(follow_code(read_graph(model, example_inputs), model, example_inputs, inexact))


def groups_of(links: Links) -> ChannelGroups:
    """Return the groups in the ids of a graph: units that lie on the same axes are one group."""
    axes = stored_axes(links)
    frozen: dict[tuple[str, int], str] = {}
    where: dict[int, list[tuple[str, int]]] = {}
    for axis, ids in axes.items():
        roots, free = links.units.roots(ids), links.units.free(ids)
        if len(ids) > 1 and not free.any():
            frozen[axis] = links.units.reason(int(ids[0])) or ""
        for root in np.unique(roots[free]).tolist():
            where.setdefault(root, []).append(axis)
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for root, standing in where.items():
        alike.setdefault(tuple(standing), []).append(root)
    groups = []
    for stands, units in alike.items():
        number = {root: unit for unit, root in enumerate(units)}
        members = []
        for name, dim in stands:
            roots = links.units.roots(axes[name, dim]).tolist()
            members.append(Member(name, dim, np.array([number.get(root, -1) for root in roots], np.int64)))
        groups.append(ChannelGroup(len(units), tuple(members)))
    return ChannelGroups(tuple(groups), frozen, _unknown(links, axes))


def _unknown(links: Links, axes: Mapping[tuple[str, int], Ints]) -> dict[str, tuple[str, ...]]:
    """Return the operators without a rule that froze an axis of a parameter; buffers of rotations do not count."""
    standing = [links.units.roots(ids) for (name, _), ids in axes.items() if name in links.parameters]
    weights = np.unique(np.concatenate(standing)) if standing else np.zeros(0, np.int64)
    found = {}
    for operator, places in links.unknown.items():
        froze = [path for path, ids in places if np.isin(links.units.roots(ids), weights).any()]
        if froze:
            found[operator] = tuple(dict.fromkeys(froze))
    return found


def stored_axes(links: Links) -> dict[tuple[str, int], Ints]:
    """Return {(parameter or buffer, dimension): ids}."""
    return {
        (name, dim): ids
        for node, name in links.graph.stored.items()
        if node in links.axes
        for dim, ids in enumerate(links.axes[node].ids)
    }
