"""The graph of a module as steps that a signal takes from channel to channel, as plain values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from ntksap._base import InputError
from ntksap.compaction.graph import operator_name, owner_of, read_graph
from ntksap.compaction.ids import Ints
from ntksap.compaction.links import Links, link
from ntksap.net import Inputs, first_tensor, unwrap

ANYWHERE = 0
"""The unit of a signal that may be in any channel: before the first layer, and after channels are mixed."""

_WEIGHT = {"linear": 1, "addmm": 2, "mm": 1, "matmul": 1}
_WEIGHT |= {f"conv{transposed}{n}d": 1 for transposed in ("", "_transpose") for n in (1, 2, 3)}

_INPUTS_FIRST = {"addmm", "mm", "matmul"} | {f"conv_transpose{n}d" for n in (1, 2, 3)}
"""Layers whose weight is (inputs, outputs, …)."""


@dataclass(frozen=True)
class Kernels:
    """The connections of a layer: from each of its inputs to each output of the same group.

    Attributes:
        weight: the name of the parameter that holds them.
        inputs: the unit of each input.
        outputs: the unit of each output.
        groups: how many groups the layer's inputs and outputs are divided into.
        inputs_first: the parameter's first dimension is that of the inputs, as in ``x @ weight``.
    """

    weight: str
    inputs: Ints
    outputs: Ints
    groups: int
    inputs_first: bool = False


@dataclass(frozen=True)
class Step:
    """One operator: it makes the tensor whose number is the step's own from those of ``sources``.

    Attributes:
        sources: numbers of the tensors that it reads, of those that depend on the module's inputs; none for an input.
        units: the units of channels that its result has.
        kernels: the connections of a layer; None where a channel stays what it is, or is mixed with all others.
        ends: the module returns the result.
        moves: the operator only moves channels, so those that its result lacks are left out.
        loses: the operator's name and place if it only moves channels, but to where they cannot be followed; else "".
    """

    sources: tuple[int, ...]
    units: Ints
    kernels: Kernels | None = None
    ends: bool = False
    moves: bool = False
    loses: str = ""


def read_steps(
    model: nn.Module, example_inputs: Inputs, output: Callable[[Any], Tensor] = first_tensor
) -> tuple[Step, ...]:
    """Return the steps from the inputs of ``model`` to its output, in the order in which they run.

    Channels coupled by a sum, a concatenation or a layer that is used twice are one unit, see `channel_groups`.
    ``output`` turns what the module returns into one tensor.

    Raises `InputError` if the graph cannot be read, or has an operator without a rule where channels pass.

    >>> import torch
    >>> steps = read_steps(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 3))
    >>> [(step.sources, step.kernels.weight if step.kernels else None) for step in steps]
    [((), None), ((0,), '0.weight'), ((1,), None), ((2,), '2.weight')]
    """
    module = _Returning(unwrap(model), output)
    graph = read_graph(module, example_inputs)
    links = link(graph, module, apart=True)
    if links.unknown:
        raise InputError(
            f"there is no rule for {', '.join(links.unknown)}, so it is unknown which channels a signal takes there: "
            "add one with ntksap.compaction.rule"
        )
    number: dict[fx.Node, int] = {}
    steps: list[Step] = []
    for node in graph.nodes:
        sources = tuple(number[source] for source in dict.fromkeys(node.all_input_nodes) if source in number)
        given = node.op == "placeholder" and node not in graph.stored and node not in graph.constants
        if not given and not sources:
            continue  # made of parameters alone
        number[node] = len(steps)
        kernels, ends = _kernels(links, node, number), node in graph.outputs
        loses = _loses(links, node)
        steps.append(Step(sources, _units(links, node), kernels, ends, node in links.moved, loses))
    return tuple(steps)


class _Returning(nn.Module):
    """A module that returns one tensor."""

    def __init__(self, inner: nn.Module, output: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.inner, self.output = inner, output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the inner module's output as one tensor."""
        return self.output(self.inner(*args, **kwargs))


def _units(links: Links, node: fx.Node) -> Ints:
    axes = links.axes[node]
    ids = np.concatenate([one.present for one in (axes if isinstance(axes, list) else [axes])])
    found: Ints = np.unique(links.units.roots(ids)) if len(ids) else ids
    known: Ints = found[found != ANYWHERE]
    return known


def _loses(links: Links, node: fx.Node) -> str:
    if node not in links.lost:
        return ""
    return f"{operator_name(node)} in {owner_of(node).removeprefix('inner').lstrip('.') or 'the module itself'}"


def _kernels(links: Links, node: fx.Node, number: dict[fx.Node, int]) -> Kernels | None:
    """Return the connections if the node is a layer that multiplies a signal by a parameter."""
    operator = operator_name(node)
    place = _WEIGHT.get(operator) if node.op == "call_function" else None
    if place is None:
        return None
    signal, weight = node.args[place - 1], node.args[place]
    if not isinstance(signal, fx.Node) or not isinstance(weight, fx.Node) or signal not in number:
        return None
    name = links.graph.stored.get(weight, "")
    depth = len(links.axes[weight].ids)
    if name not in links.parameters or ("conv" not in operator and depth != 2):
        return None
    dim = len(links.axes[signal].ids) - depth + 1 if "conv" in operator else -1
    groups: Any = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
    inputs, outputs = (links.units.roots(links.axes[one].along(dim)) for one in (signal, node))
    return Kernels(name.removeprefix("inner."), inputs, outputs, int(groups), operator in _INPUTS_FIRST)
