"""Ids through the whole graph: what is coupled with what, and what is frozen and why."""

from collections.abc import Collection
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import numpy as np
from torch import fx, nn
from torch.utils._pytree import tree_map_only

from ntksap.compaction.graph import Graph, shape_of
from ntksap.compaction.ids import Axes, Ints, Units, fixed
from ntksap.compaction.rules import RULES, Operator, follow_apart


@dataclass
class Links:
    """The ids of every tensor in a graph.

    Attributes:
        axes: {node: its ids, a list for several results}.
        units: which ids live or die together.
        parameters: the names among the stored tensors that are parameters, not buffers.
        sized: the places where the module's own code names the size of an axis that channels may be removed from.
        moved: operators that only move channels, all of whose ids follow.
        lost: operators that move channels to where their ids cannot follow.
        unknown: {operator without a rule: [(the module that it is in, the ids that it froze)]}.
    """

    graph: Graph
    units: Units = field(default_factory=Units)
    axes: dict[fx.Node, Any] = field(default_factory=dict)
    sized: list[Operator] = field(default_factory=list)
    parameters: frozenset[str] = frozenset()
    moved: set[fx.Node] = field(default_factory=set)
    lost: set[fx.Node] = field(default_factory=set)
    unknown: dict[str, list[tuple[str, Ints]]] = field(default_factory=dict)


def link(
    graph: Graph,
    module: nn.Module,
    *,
    inexact: Collection[str] = (),
    rigid: Collection[str] = (),
    apart: bool = False,
) -> Links:
    """Carry ids through ``graph`` with the rules of its operators.

    Args:
        graph: the graph of ``module``.
        module: the module, whose attributes show what an axis is.
        inexact: operators (``"layer_norm"``) that may change with the number of channels instead of freezing it.
        rigid: names of classes whose code cannot follow another size.
        apart: couple only what is combined, see `follow_apart`; more is needed only when channels are removed.
    """
    links = Links(graph, parameters=frozenset(name for name, _ in module.named_parameters()))
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    known = {**graph.constants, **{node: tensors[name] for node, name in graph.stored.items() if name in tensors}}
    signals: set[fx.Node] = set()
    for node in graph.nodes:
        if node not in known and (node.op == "placeholder" or not signals.isdisjoint(node.all_input_nodes)):
            signals.add(node)
        if node in graph.stored and graph.stored[node] in tensors:
            tensor = tensors[graph.stored[node]]
            links.axes[node] = Axes(tuple(links.units.new(size) for size in tensor.shape))
        elif node.op == "call_function" and node.target is getitem:
            links.axes[node] = links.axes[node.args[0]][node.args[1]]  # type: ignore[index]
            links.moved.add(node)
        elif node.op == "call_function":
            links.axes[node] = _follow(
                links, Operator(node, module, links.units, inexact, rigid, apart, known, signals)
            )
        else:
            links.axes[node] = _fixed(node)
    for node in graph.outputs:
        for axes in _listed(links.axes[node]):
            for ids in axes.ids:
                if ids.any():
                    links.units.freeze(ids[ids != 0], "it is an output of the module")
    return links


def _follow(links: Links, op: Operator) -> Any:
    """Return the ids of a node's result by its rule; without one, everything that it touches is frozen."""
    node = op.node
    args = tree_map_only(fx.Node, links.axes.__getitem__, node.args)
    kwargs = tree_map_only(fx.Node, links.axes.__getitem__, dict(node.kwargs))
    touched = [axes for source in node.all_input_nodes for axes in _listed(links.axes[source])]
    if not any(axes.present.any() for axes in touched):
        return _fixed(node)  # nothing but sizes of inputs
    if op.name in RULES:
        result = follow_apart(op, args, kwargs) if op.apart else RULES[op.name](op, *args, **kwargs)
        if op.sized:
            links.sized.append(op)
        if op.moved:
            links.moved.add(node)
        if op.lost:
            links.lost.add(node)
        return result
    ids = np.concatenate([own for axes in touched for own in axes.ids])
    links.unknown.setdefault(op.name, []).append((op.path, ids[links.units.free(ids)]))
    op.freeze_all(touched, "there is no rule for this operator")
    return _fixed(node)


def _fixed(node: fx.Node) -> Any:
    shape = shape_of(node)
    if isinstance(shape, list):
        return [fixed(one or ()) for one in shape]
    return fixed(shape or ())


def _listed(axes: Any) -> list[Axes]:
    return [axes] if isinstance(axes, Axes) else list(axes)
