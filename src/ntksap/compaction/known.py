"""Forwards through the graph: what every tensor holds whatever the inputs are.

A channel whose weights are all pruned has a known value, its bias; so has everything that is computed from known
values alone, and a product with a zero that stays one. A `Known` is on the safe side: what is not marked unknown is
exact. Weights that stay in the module and are trained count as unknown, whatever they are now, so that gradients are
the same in the smaller module, not outputs alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from ntksap.compaction.graph import Graph, operator_name, shape_of
from ntksap.compaction.rules.elementwise import BINARY, UNARY
from ntksap.compaction.rules.reductions import POOLING
from ntksap.compaction.rules.shape import MOVES, VIEWS

MOVING = MOVES | VIEWS | {"chunk", "split", "split_with_sizes", "tensor_split", "unbind", "slice", "narrow", "select",
                          "roll", "index", "index_select"}  # fmt: skip
"""Operators that only move entries."""

ELEMENTWISE = set(UNARY) | set(BINARY)
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}


@dataclass(frozen=True)
class Known:
    """Values of a tensor, where they are not known, and where they are known but trained (nowhere by default)."""

    value: Tensor
    unknown: Tensor
    trained: Tensor | None = None

    @property
    def zero(self) -> Tensor:
        """Where it is known to be 0, and to stay 0."""
        zero = ~self.unknown & (self.value == 0)
        return zero if self.trained is None else zero & ~self.trained


Values: TypeAlias = dict[fx.Node, Any]
"""{node: `Known`, a list of them for several results, None for no tensor}."""


def evaluate(graph: Graph, stored: Mapping[str, Known]) -> Values:
    """Return what is known of every node, given what is known of the module's parameters and buffers by name."""
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


def certain(value: Tensor) -> Known:
    """Return a tensor of which everything is known."""
    return Known(value.cpu(), torch.zeros((), dtype=torch.bool).expand(value.shape))


def nothing_known(node: fx.Node) -> Any:
    """Return the result of a node of which nothing is known."""

    def hidden(like: Any) -> Known | None:
        if not isinstance(like, Tensor):
            return None
        zero = torch.zeros((), dtype=like.dtype).expand(tuple(like.shape))
        return Known(zero, torch.ones((), dtype=torch.bool).expand(tuple(like.shape)))

    value = node.meta.get("val")
    return [hidden(one) for one in value] if isinstance(value, tuple | list) else hidden(value)


def run(node: fx.Node, values: Values, pick: Callable[[Known], Tensor]) -> Any:
    """Run the operator of ``node`` on one side of its arguments' values."""

    def one(source: fx.Node) -> Any:
        known = values[source]
        return [pick(k) for k in known] if isinstance(known, list) else pick(known)

    return call(node, one)


def call(node: fx.Node, value: Callable[[fx.Node], Any]) -> Any:
    """Run the operator of ``node`` with a value for each node among its arguments, on the CPU."""
    given = tree_map_only(fx.Node, value, (node.args, dict(node.kwargs)))
    args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), given)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """Return an argument of an operator by place or name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


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
    moved = run(node, values, lambda k: k.value.contiguous())  # a view may not be one of an expanded tensor
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
    hidden = torch.zeros((), dtype=torch.bool)
    for source in node.all_input_nodes:
        hidden = hidden | values[source].unknown
    return Known(value, hidden.expand(value.shape))


def _product(node: fx.Node, values: Values) -> Known:
    result = _elementwise(node, values)
    zero = torch.zeros((), dtype=torch.bool)
    for source in node.all_input_nodes:
        zero = zero | values[source].zero
    return Known(result.value.masked_fill(zero, 0), result.unknown & ~zero)


def by_channel(known: Known, dim: int) -> tuple[Tensor, Tensor]:
    """Return value and unknown for each index of a dimension: known only where all its entries are the same."""
    rows = known.value.movedim(dim, -1).reshape(-1, known.value.shape[dim])
    hidden = known.unknown.movedim(dim, -1).reshape(rows.shape)
    if not len(rows):
        return torch.zeros_like(known.value.new_zeros(known.value.shape[dim])), hidden.new_ones(known.value.shape[dim])
    unknown = hidden.any(0) | (rows != rows[0]).any(0)
    return rows[0].masked_fill(unknown, 0), unknown


def matrix_of(node: fx.Node, values: Values) -> tuple[fx.Node, Known, fx.Node | None] | None:
    """Return input, weight (O, I) and bias of a linear layer, None if it is no plain one."""
    name = operator_name(node)
    if name == "linear":
        return node.args[0], values[node.args[1]], argument(node, 2, "bias")  # type: ignore[return-value, index]
    if name == "addmm" and not node.kwargs and len(node.args[0].meta["val"].shape) == 1:  # type: ignore[union-attr]
        bias, x, weight = node.args
        turned = values[weight]  # type: ignore[index]
        trained = None if turned.trained is None else turned.trained.T
        return x, Known(turned.value.T, turned.unknown.T, trained), bias  # type: ignore[return-value]
    return None


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


def leading_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors (…, I) of one shape as (rows, I); one row if all rows are the same."""
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    same = all(len(rows) > 0 and bool((rows == rows[0]).all()) for rows in flat)
    return tuple(rows[:1] if same else rows for rows in flat)


def _matmul(node: fx.Node, values: Values) -> Known:
    a, b = values[node.args[0]], values[node.args[1]]  # type: ignore[index]
    hidden = _meets(a.unknown, ~b.zero) | _meets(~a.zero, b.unknown)
    value = torch.matmul(a.value.masked_fill(a.unknown, 0), b.value.masked_fill(b.unknown, 0))
    return Known(value.masked_fill(hidden, 0), hidden)


def _einsum(node: fx.Node, values: Values) -> Known | None:
    """Known is only what every product has a zero for."""
    operands = [values[operand] for operand in node.args[1]]  # type: ignore[index, union-attr]
    try:
        hidden = torch.einsum(str(node.args[0]), *[(~operand.zero).float() for operand in operands]) != 0
    except RuntimeError:  # letters that stand for nothing here
        return None
    return Known(torch.zeros((), dtype=operands[0].value.dtype).expand(hidden.shape), hidden)


def _meets(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.float(), b.float()) != 0


def kernel_of(node: fx.Node, values: Tensor) -> Tensor:
    """Return values of a convolution's weight as (outputs, inputs ÷ groups, taps), of a transposed one too."""
    kernel: Tensor = values.flatten(2)
    if operator_name(node) in TRANSPOSED:  # from (groups · C ÷ groups, O ÷ groups, taps)
        kernel = kernel.unflatten(0, (groups_of_node(node), -1)).transpose(1, 2).flatten(0, 1)
    return kernel


def groups_of_node(node: fx.Node) -> int:
    """Return into how many groups a convolution is divided."""
    return int(argument(node, 6, "groups", 1))


def unpadded(node: fx.Node) -> bool:
    """Return whether a convolution sees no zeros around its image, so that a constant stays one."""
    padding = argument(node, 4, "padding", 0)
    plain = operator_name(node) in CONVOLUTIONS
    return plain and not isinstance(padding, str) and not any(torch.atleast_1d(torch.tensor(padding)).tolist())


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
    """Each channel is normalised by itself: one that is known gives what it gives alone."""
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
    return Known(torch.zeros((), dtype=v.value.dtype).expand(shape), ~zero.expand(shape))


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


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """Return the nodes among the arguments, each once."""
    return list(
        dict.fromkeys(leaf for leaf in tree_leaves((node.args, dict(node.kwargs))) if isinstance(leaf, fx.Node))
    )
