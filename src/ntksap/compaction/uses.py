"""How often each weight is multiplied in one evaluation, read from the shapes in the graph."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from ntksap._base import InputError
from ntksap.compaction.graph import Graph, operator_name, read_graph
from ntksap.compaction.values import CONVOLUTIONS, TRANSPOSED
from ntksap.net import Inputs, unwrap

_PRODUCTS = {"mm": 0, "bmm": 0, "matmul": 0, "addmm": 1, "baddbmm": 1}
"""Matrix products: {operator: the place of its first factor}."""
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def weight_uses(model: nn.Module, example_inputs: Inputs, names: Iterable[str]) -> dict[str, float]:
    """Return the multiply-adds that a weight of each of these parameters takes part in, on average over its weights.

    Args:
        model: any module that ``torch.export`` can read.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
        names: the parameters.

    Raises `InputError` where only operators whose multiply-adds are not known use a parameter.

    >>> import torch
    >>> weight_uses(nn.Conv2d(3, 8, 3), torch.ones(1, 3, 6, 6), ["weight"])
    {'weight': 16.0}
    """
    model = unwrap(model)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return uses_in(read_graph(model, example_inputs), {name: sizes[name] for name in names})


def uses_in(graph: Graph, sizes: Mapping[str, int]) -> dict[str, float]:
    """Do what `weight_uses` does, for a graph and {parameter: number of its weights}."""
    found = dict.fromkeys(sizes, 0.0)
    for node in graph.nodes:
        for factor, multiply_adds in _factors(node) if node.op == "call_function" else ():
            name = graph.stored.get(_origin(factor))
            if name in found:
                found[name] += multiply_adds / sizes[name]
    for node, name in graph.stored.items():
        if name in found and not found[name] and node.users:
            users = ", ".join(sorted({operator_name(user) for user in node.users}))
            raise InputError(
                f"the multiply-adds of {name!r} cannot be read from the graph, where {users} uses it: count weights "
                "(budget='weights'), or exclude it"
            )
    return found


def _factors(node: fx.Node) -> list[tuple[fx.Node, float]]:
    """Return the tensors that a node multiplies, each with the multiply-adds that it takes part in."""
    operator, args = operator_name(node), node.args
    if operator in CONVOLUTIONS | TRANSPOSED:
        counted = _value(args[0] if operator in TRANSPOSED else node)
        channel = counted.dim() - _value(args[1]).dim() + 1
        weight = _value(args[1])
        return [(_node(args[1]), counted.numel() / counted.shape[channel] * weight.numel())]
    if operator == "linear":
        return [(_node(args[1]), float(_value(node).numel() * _value(args[1]).shape[-1]))]
    if operator in _PRODUCTS:
        first, second = args[_PRODUCTS[operator] : _PRODUCTS[operator] + 2]
        total = float(_value(node).numel() * _value(first).shape[-1])
        return [(_node(first), total), (_node(second), total)]
    if operator == "einsum":
        operands: Any = args[1]
        letters = str(args[0]).split("->")[0].replace(" ", "").split(",")
        if "..." not in str(args[0]):
            sizes = {a: s for term, x in zip(letters, operands, strict=True)
                     for a, s in zip(term, _value(x).shape, strict=True)}  # fmt: skip
            return [(_node(x), float(math.prod(sizes.values()))) for x in operands]
    if operator == "bilinear":
        return [(_node(args[2]), float(_value(node).numel() * math.prod(_value(args[2]).shape[1:])))]
    if operator in _RECURRENT:
        weights: Any = args[2]
        steps = _value(args[0]).numel() / _value(args[0]).shape[-1]
        return [(_node(weight), steps * _value(weight).numel()) for weight in weights]
    return []


def _node(argument: Any) -> fx.Node:
    assert isinstance(argument, fx.Node)
    return argument


def _value(argument: Any) -> Tensor:
    value: Tensor = _node(argument).meta["val"]
    return value


def _origin(node: fx.Node) -> fx.Node:
    """Return the only tensor that a tensor is made from, with operators of one tensor: a transpose, a view, a part."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node
