"""Forwards through the graph: what every tensor holds whatever the inputs are.

A channel whose weights are all pruned has a known value, its bias; so has everything that is computed from known
values alone, and a product with a zero that stays zero. A `Known` errs on the safe side: what is not marked unknown is
exact. Weights that stay in the module and are trained count as unknown, whatever they are now, so that not only outputs
but also gradients are the same in the smaller module.
"""

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from ntksap.compaction.graph import Graph, operator_name, shape_of
from ntksap.compaction.rules.reductions import POOLING
from ntksap.compaction.values import (
    CONVOLUTIONS,
    ELEMENTWISE,
    MOVING,
    TRANSPOSED,
    Known,
    Values,
    argument,
    by_channel,
    certain,
    groups_of_node,
    kernel_of,
    leading_rows,
    matrix_of,
    nothing_known,
    run,
    unpadded,
)


def evaluate(graph: Graph, stored: Mapping[str, Known]) -> Values:
    """Return what is known about every node, given what is known about the module's parameters and buffers by name."""
    values: Values = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node in graph.stored:
                values[node] = stored[graph.stored[node]]
            elif node in graph.constants:
                values[node] = certain(graph.constants[node].detach())
            elif node.op == "call_function" and node.target is getitem:
                source = values[node.args[0]]  # type: ignore[index]
                values[node] = None if source is None else source[node.args[1]]
            elif node.op == "call_function":
                values[node] = _result(node, values)
            else:
                values[node] = nothing_known(node)
    return values


def _result(node: fx.Node, values: Values) -> Any:
    sources = [values[source] for source in node.all_input_nodes]
    if any(source is None for source in sources) or not isinstance(node.target, torch._ops.OpOverload):
        return nothing_known(node)
    knowns = [k for source in sources for k in (source if isinstance(source, list) else [source])]
    if not any(k.unknown.any() for k in knowns) and not any(k.trained is not None for k in knowns):
        result = run(node, values, lambda k: k.value)
        return [certain(r) for r in result] if isinstance(result, tuple | list) else certain(result)
    name = operator_name(node)
    rule = _RULES.get(name, _moving if name in MOVING else None)
    if name in ELEMENTWISE:
        rule = rule or _elementwise
    result = rule(node, values) if rule else None
    return nothing_known(node) if result is None else result


def _moving(node: fx.Node, values: Values) -> Any:
    if any(not values[n].value.is_floating_point() and values[n].unknown.any()
           for n in node.all_input_nodes if isinstance(values[n], Known) and n is not node.args[0]):  # fmt: skip
        return None  # chosen by an index that is not known
    moved = run(node, values, lambda k: k.value.contiguous())  # an expanded tensor may not allow a view
    indices = operator_name(node) in ("index", "index_select")
    hidden = run(
        node,
        values,
        lambda k: k.value if indices and not k.value.is_floating_point() else k.unknown.float().contiguous(),
    )
    if isinstance(moved, tuple | list):
        return [Known(m, h != 0) for m, h in zip(moved, hidden, strict=True)]
    trained = None
    if len(node.all_input_nodes) == 1 and values[node.all_input_nodes[0]].trained is not None:
        trained = run(node, values, lambda k: k.trained.float().contiguous()) != 0  # type: ignore[union-attr]
    return Known(moved, hidden != 0, trained)


def _elementwise(node: fx.Node, values: Values) -> Known:
    value = run(node, values, lambda k: k.value)
    hidden = torch.zeros((), dtype=torch.bool, device="cpu")
    for source in node.all_input_nodes:
        hidden = hidden | values[source].unknown
    return Known(value, hidden.expand(value.shape))


def _product(node: fx.Node, values: Values) -> Known:
    result = _elementwise(node, values)
    zero = torch.zeros((), dtype=torch.bool, device="cpu")
    for source in node.all_input_nodes:
        zero = zero | values[source].zero
    return Known(result.value.masked_fill(zero, 0), result.unknown & ~zero)


def _linear(node: fx.Node, values: Values) -> Known | None:
    parts = matrix_of(node, values)
    if parts is None:
        return None
    x, weight, bias = parts
    rows, hides, zero = leading_rows(values[x].value, values[x].unknown, values[x].zero)
    out = rows.masked_fill(hides, 0) @ weight.value.masked_fill(weight.unknown, 0).T
    hidden = _meets(hides, ~weight.zero.T) | _meets(~zero, weight.unknown.T)
    if bias is not None:
        out, hidden = out + values[bias].value, hidden | values[bias].unknown
    shape = shape_of(node)
    out = out.masked_fill(hidden, 0)
    if len(out) == 1:
        return Known(out[0].expand(shape), hidden[0].expand(shape))
    return Known(out.reshape(shape), hidden.reshape(shape))


def _matmul(node: fx.Node, values: Values) -> Known:
    a, b = values[node.args[0]], values[node.args[1]]  # type: ignore[index]
    hidden = _meets(a.unknown, ~b.zero) | _meets(~a.zero, b.unknown)
    value = torch.matmul(a.value.masked_fill(a.unknown, 0), b.value.masked_fill(b.unknown, 0))
    return Known(value.masked_fill(hidden, 0), hidden)


def _einsum(node: fx.Node, values: Values) -> Known | None:
    """An entry is known only if each of its products has a zero."""
    operands = [values[operand] for operand in node.args[1]]  # type: ignore[index, union-attr]
    try:
        hidden = torch.einsum(str(node.args[0]), *[(~operand.zero).float() for operand in operands]) != 0
    except RuntimeError:  # letters that have no meaning here
        return None
    return Known(torch.zeros((), dtype=operands[0].value.dtype, device="cpu").expand(hidden.shape), hidden)


def _meets(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.float(), b.float()) != 0


def _convolution(node: fx.Node, values: Values) -> Known | None:
    x, weight = values[node.args[0]], values[node.args[1]]  # type: ignore[index]
    bias = argument(node, 2, "bias")
    groups = groups_of_node(node)
    channel = x.value.dim() - weight.value.dim() + 1
    value, unknown = by_channel(x, channel)
    if not unpadded(node):
        unknown = unknown | (value != 0)

    def grouped(part: Tensor) -> Tensor:  # (groups, O ÷ groups, C ÷ groups)
        split: Tensor = part.unflatten(0, (groups, -1))
        return split

    inputs = (groups, 1, -1)
    alive = grouped(kernel_of(node, ~weight.zero).any(-1)) & unknown.unflatten(0, inputs)
    unsure = grouped(kernel_of(node, weight.unknown).any(-1)) & (unknown | (value != 0)).unflatten(0, inputs)
    hidden = (alive | unsure).any(-1).flatten()
    summed = grouped(kernel_of(node, weight.value).sum(-1))
    out = (summed * value.masked_fill(unknown, 0).unflatten(0, inputs)).sum(-1).flatten()
    if bias is not None:
        out, hidden = out + values[bias].value, hidden | values[bias].unknown
    shape = shape_of(node)
    column = [1] * len(shape)
    column[channel] = -1
    return Known(out.masked_fill(hidden, 0).view(column).expand(shape), hidden.view(column).expand(shape))


def _glu(node: fx.Node, values: Values) -> Known:
    x, dim = values[node.args[0]], argument(node, 1, "dim", -1)  # type: ignore[index]
    value, gate = x.unknown.chunk(2, dim)
    zero = x.zero.chunk(2, dim)[0]
    return Known(run(node, values, lambda k: k.value), (value | gate) & ~zero)


def _prelu(node: fx.Node, values: Values) -> Known:
    """A slope matters only where there is something to bend."""
    x = values[node.args[0]]  # type: ignore[index]
    hidden = x.unknown | (x.value != 0)
    return Known(run(node, values, lambda k: k.value), hidden)


def _norm_of_channels(node: fx.Node, values: Values) -> Known | None:
    """Each channel is normalised by itself: a known one gives the same as on its own."""
    x = values[node.args[0]]  # type: ignore[index]
    if operator_name(node) == "group_norm" and node.args[1] != x.value.shape[1]:
        return None
    hidden = x.unknown.flatten(2).any(-1)
    for stored in node.args[1:4]:
        if isinstance(stored, fx.Node):
            hidden = hidden | values[stored].unknown
    return Known(
        run(node, values, lambda k: k.value),
        hidden.view(*hidden.shape, *[1] * (x.value.dim() - 2)).expand(x.value.shape),
    )


def _layer_norm(node: fx.Node, values: Values) -> Known | None:
    """A feature whose weight is pruned is its bias."""
    weight, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    if weight is None:
        return None
    zero = values[weight].zero
    value = torch.zeros_like(values[weight].value)
    if bias is not None and operator_name(node) == "layer_norm":
        value, zero = values[bias].value.masked_fill(~zero, 0), zero & ~values[bias].unknown
    shape = shape_of(node)
    return Known(value.expand(shape), ~zero.expand(shape))


def _batch_norm(node: fx.Node, values: Values) -> Known:
    value = run(node, values, lambda k: k.value)
    hidden = values[node.args[0]].unknown  # type: ignore[index]
    column = [1, -1, *[1] * (value.dim() - 2)]
    weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
    if weight is not None:
        hidden = (hidden & ~values[weight].zero.view(column)) | values[weight].unknown.view(column)
    if bias is not None:
        hidden = hidden | values[bias].unknown.view(column)
    return Known(value, hidden.expand(value.shape))


def _spatial(node: fx.Node, values: Values) -> Any:
    """A channel of which anything is unknown is unknown."""
    result = run(node, values, lambda k: k.value)
    count = POOLING[operator_name(node)]
    hidden = values[node.args[0]].unknown.flatten(-count).any(-1)  # type: ignore[index]

    def one(value: Tensor) -> Known:
        return Known(value, hidden.view(*hidden.shape, *[1] * count).expand(value.shape))

    return [one(r) for r in result] if isinstance(result, tuple | list) else one(result)


def _attention(node: fx.Node, values: Values) -> Known:
    v = values[node.args[2]]  # type: ignore[index]
    zero = v.zero.all(-2, keepdim=True)
    shape = shape_of(node)
    if zero.dim() > 2 and zero.shape[-3] != shape[-3]:
        zero = zero.repeat_interleave(shape[-3] // zero.shape[-3], -3)
    return Known(torch.zeros((), dtype=v.value.dtype, device="cpu").expand(shape), ~zero.expand(shape))


def _embedding(node: fx.Node, values: Values) -> Known:
    value, unknown = by_channel(values[node.args[0]], 1)  # type: ignore[index]
    shape = shape_of(node)
    return Known(value.expand(shape), unknown.expand(shape))


def _sum(node: fx.Node, values: Values) -> Known:
    value = run(node, values, lambda k: k.value)
    return Known(value, run(node, values, lambda k: k.unknown.float()) != 0)


_RULES: dict[str, Callable[[fx.Node, Values], Any]] = {
    "mul": _product, "multiply": _product, "linear": _linear, "addmm": _linear, "matmul": _matmul, "bmm": _matmul,
    "mm": _matmul, "batch_norm": _batch_norm, "scaled_dot_product_attention": _attention, "embedding": _embedding,
    "sum": _sum, "mean": _sum, "glu": _glu, "einsum": _einsum, "prelu": _prelu, "instance_norm": _norm_of_channels,
    "group_norm": _norm_of_channels, "layer_norm": _layer_norm, "rms_norm": _layer_norm,
} | dict.fromkeys(CONVOLUTIONS | TRANSPOSED, _convolution) | dict.fromkeys(POOLING, _spatial)  # fmt: skip
