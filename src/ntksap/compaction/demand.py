"""Backwards through the graph: which entries of every tensor an output depends on."""

from collections.abc import Collection
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from ntksap.compaction.backward import Backward, Demands, Fold, Rule, elementwise, everything, moving
from ntksap.compaction.graph import Graph, operator_name
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
    groups_of_node,
    kernel_of,
    leading_rows,
    matrix_of,
    unpadded,
)


def demands(graph: Graph, values: Values, inexact: Collection[str] = ()) -> tuple[Demands, list[Fold]]:
    """Return what the outputs depend on, and where constants can be folded.

    Entries that reach an output only through statistics over channels, in operators that may be ``inexact``, do not
    count.
    """
    work = Backward(values)
    for node in graph.outputs:
        work.add(node, torch.ones((), dtype=torch.bool, device="cpu").expand(tuple(node.meta["val"].shape)))
    for node in reversed(graph.nodes):
        if node.op != "call_function" or node.target is getitem:
            continue
        wanted = work.of_node(node)
        if not any(w.any() for w in wanted if w is not None):
            continue
        name = operator_name(node)
        rule = (
            _inexact
            if name in inexact
            else _RULES.get(name) or (moving if name in MOVING else elementwise if name in ELEMENTWISE else everything)
        )
        (rule if isinstance(node.target, torch._ops.OpOverload) else everything)(work, node, wanted)
    return work.found, work.folds


def _linear(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    parts = matrix_of(node, work.values)
    if parts is None:
        return everything(work, node, wanted)
    x, weight, bias = parts
    assert wanted[0] is not None
    (rows,) = leading_rows(wanted[0].expand(tuple(node.meta["val"].shape)))
    reaches = torch.matmul(rows.float(), (~weight.zero).float()) != 0
    reaches = reaches[0] if len(reaches) == 1 else reaches.reshape(tuple(x.meta["val"].shape))
    constant, unknown = by_channel(work.values[x], -1)
    if _foldable(bias, work.values):
        assert bias is not None
        work.folds.append(Fold(bias, x, -1, weight.value, constant))
        reaches = reaches & unknown
    work.add(x, reaches & ~work.values[x].zero)
    return None


def _foldable(bias: fx.Node | None, values: Values) -> bool:
    return bias is not None and bias.op == "placeholder" and len(bias.users) == 1


def _convolution(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    x, bias = node.args[0], argument(node, 2, "bias")
    assert isinstance(x, fx.Node)
    assert wanted[0] is not None
    weight: Known = work.values[node.args[1]]  # type: ignore[index]
    groups = groups_of_node(node)
    channel = x.meta["val"].dim() - weight.value.dim() + 1
    shape = tuple(node.meta["val"].shape)
    rows = wanted[0].expand(shape).movedim(channel, -1).reshape(-1, shape[channel]).any(0)
    alive = (kernel_of(node, ~weight.zero).any(-1) & rows[:, None]).unflatten(0, (groups, -1))
    reaches = alive.any(1).flatten()
    if groups == 1 and unpadded(node) and _foldable(bias, work.values):
        constant, unknown = by_channel(work.values[x], channel)
        work.folds.append(Fold(bias, x, channel, kernel_of(node, weight.value).sum(-1), constant))
        reaches = reaches & unknown
    column = [1] * len(shape)
    column[channel] = -1
    work.add(x, reaches.view(column) & ~work.values[x].zero)
    return None


def _matmul(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    first, second = node.args[0], node.args[1]
    a, b = work.values[first], work.values[second]  # type: ignore[index]
    if a.value.dim() < 2 or b.value.dim() < 2:
        return everything(work, node, wanted)
    assert wanted[0] is not None
    reaches = wanted[0].expand(tuple(node.meta["val"].shape)).float()
    to_a = torch.matmul(reaches, (~b.zero).float().mT)
    to_b = torch.matmul((~a.zero).float().mT, reaches)
    work.add(first, (to_a.sum_to_size(a.value.shape) != 0) & ~a.zero)
    work.add(second, (to_b.sum_to_size(b.value.shape) != 0) & ~b.zero)
    return None


def _einsum(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    """An entry counts if it meets no zero in a product that is wanted."""
    equation, operands = str(node.args[0]).replace(" ", ""), list(node.args[1])  # type: ignore[arg-type]
    left, arrow, right = equation.partition("->")
    if not arrow or "." in equation:
        return everything(work, node, wanted)
    assert wanted[0] is not None
    reaches = wanted[0].expand(tuple(node.meta["val"].shape)).float()
    alive = [(~work.values[operand].zero).float() for operand in operands]
    for operand, term in zip(operands, left.split(","), strict=True):
        work.add(operand, torch.einsum(f"{left},{right}->{term}", *alive, reaches) != 0)
    return None


def _glu(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    x, dim = work.values[node.args[0]], argument(node, 1, "dim", -1)  # type: ignore[index]
    assert wanted[0] is not None
    reaches = wanted[0].expand(tuple(node.meta["val"].shape))
    work.add(node.args[0], torch.cat([reaches, reaches & ~x.zero.chunk(2, dim)[0]], dim))


def _of_first(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    assert wanted[0] is not None
    work.add(node.args[0], wanted[0])


def _group_norm(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    if node.args[1] == node.meta["val"].shape[1]:
        return _spatial(work, node, wanted)
    return everything(work, node, wanted)


def _batch_norm(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    assert wanted[0] is not None
    reaches = wanted[0].expand(tuple(node.meta["val"].shape))
    weight = argument(node, 1, "weight")
    if weight is not None:
        reaches = reaches & ~work.values[weight].zero.view(1, -1, *[1] * (reaches.dim() - 2))
    work.add(node.args[0], reaches)


def _inexact(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    """Let a channel depend on itself alone; a reduction over channels on none of them."""
    source = node.args[0]
    if wanted[0] is not None and source.meta["val"].shape == node.meta["val"].shape:  # type: ignore[union-attr]
        work.add(source, wanted[0])


def _spatial(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    count = POOLING.get(operator_name(node)) or node.args[0].meta["val"].dim() - 2  # type: ignore[union-attr]
    total: Tensor | None = None
    for part in wanted:
        if part is not None:
            full = part.expand(tuple(_first(node.meta["val"]).shape)).flatten(-count).any(-1)
            total = full if total is None else total | full
    assert total is not None
    work.add(node.args[0], total.view(*total.shape, *[1] * count))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _attention(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    query, key, value = node.args[:3]
    assert wanted[0] is not None
    reaches = wanted[0].expand(tuple(node.meta["val"].shape)).any(-2, keepdim=True)  # (…, H, 1, d)
    v = work.values[value]  # type: ignore[index]
    heads = v.value.shape[-3] if v.value.dim() > 2 else 1
    grouped = v.value.dim() > 2 and reaches.shape[-3] != heads
    shared = reaches.unflatten(-3, (heads, -1)).any(-3) if grouped else reaches
    to_v = shared & ~v.zero
    work.add(value, to_v)
    used = to_v.any(-1, keepdim=True).any(-2, keepdim=True)
    work.add(key, used)
    repeats = node.meta["val"].shape[-3] // heads if v.value.dim() > 2 else 1
    work.add(query, used.repeat_interleave(repeats, -3) & reaches.any(-1, keepdim=True) if v.value.dim() > 2 else used)
    mask = argument(node, 3, "attn_mask")
    work.add(mask, torch.ones((), dtype=torch.bool, device="cpu"))


def _embedding(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    return None  # the ids of its columns are already on the result


def _reduction(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    """Every entry of what is reduced counts, for a sum those that are not known to be 0."""
    source = node.args[0]
    x = work.values[source]  # type: ignore[index]
    assert wanted[0] is not None
    leaf = torch.zeros(x.value.shape, requires_grad=True, device="cpu")
    with torch.enable_grad():
        result = node.target(leaf, *node.args[1:], **node.kwargs)  # type: ignore[operator]
        (derivative,) = torch.autograd.grad(result, leaf, wanted[0].expand(result.shape).to(result.dtype))
    work.add(source, (derivative != 0) & ~x.zero)


def _along(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    assert wanted[0] is not None
    dim = int(node.args[1])  # type: ignore[arg-type]
    work.add(node.args[0], wanted[0].expand(tuple(node.meta["val"].shape)).any(dim, keepdim=True))


_PLAIN: dict[str, Rule] = {
    "linear": _linear, "addmm": _linear, "matmul": _matmul, "bmm": _matmul, "mm": _matmul, "batch_norm": _batch_norm,
    "instance_norm": _spatial, "scaled_dot_product_attention": _attention, "embedding": _embedding, "sum": _reduction,
    "mean": _reduction, "softmax": _along, "log_softmax": _along, "cumsum": _along, "glu": _glu,
    "einsum": _einsum, "prelu": _of_first,
    "group_norm": _group_norm,
}  # fmt: skip

_RULES: dict[str, Rule] = {
    **_PLAIN,
    **dict.fromkeys(CONVOLUTIONS | TRANSPOSED, _convolution),
    **dict.fromkeys(POOLING, _spatial),
}
