"""What is known about a tensor, and the parts of an operator's node that both directions through the graph look at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from ntksap.compaction.graph import operator_name
from ntksap.compaction.rules.elementwise import BINARY, UNARY
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


def certain(value: Tensor) -> Known:
    """Return a tensor about which everything is known."""
    return Known(value.cpu(), torch.zeros((), dtype=torch.bool, device="cpu").expand(value.shape))


def nothing_known(node: fx.Node) -> Any:
    """Return the result of a node about which nothing is known."""

    def hidden(like: Any) -> Known | None:
        if not isinstance(like, Tensor):
            return None
        zero = torch.zeros((), dtype=like.dtype, device="cpu").expand(tuple(like.shape))
        return Known(zero, torch.ones((), dtype=torch.bool, device="cpu").expand(tuple(like.shape)))

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


def by_channel(known: Known, dim: int) -> tuple[Tensor, Tensor]:
    """Return value and unknown for each index of a dimension: known only where all its entries are the same."""
    rows = known.value.movedim(dim, -1).reshape(-1, known.value.shape[dim])
    hidden = known.unknown.movedim(dim, -1).reshape(rows.shape)
    if not len(rows):
        return torch.zeros_like(known.value.new_zeros(known.value.shape[dim])), hidden.new_ones(known.value.shape[dim])
    unknown = hidden.any(0) | (rows != rows[0]).any(0)
    return rows[0].masked_fill(unknown, 0), unknown


def matrix_of(node: fx.Node, values: Values) -> tuple[fx.Node, Known, fx.Node | None] | None:
    """Return input, weight (O, I) and bias of a linear layer, None if it is not a plain one."""
    name = operator_name(node)
    if name == "linear":
        return node.args[0], values[node.args[1]], argument(node, 2, "bias")  # type: ignore[return-value, index]
    if name == "addmm" and not node.kwargs and len(node.args[0].meta["val"].shape) == 1:  # type: ignore[union-attr]
        bias, x, weight = node.args
        turned = values[weight]  # type: ignore[index]
        trained = None if turned.trained is None else turned.trained.T
        return x, Known(turned.value.T, turned.unknown.T, trained), bias  # type: ignore[return-value]
    return None


def leading_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors (…, I) of one shape as (rows, I); one row if all rows are the same."""
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    same = all(len(rows) > 0 and bool((rows == rows[0]).all()) for rows in flat)
    return tuple(rows[:1] if same else rows for rows in flat)


def kernel_of(node: fx.Node, values: Tensor) -> Tensor:
    """Return values of a convolution's weight as (outputs, inputs ÷ groups, taps), also for a transposed one."""
    kernel: Tensor = values.flatten(2)
    if operator_name(node) in TRANSPOSED:  # from (groups · C ÷ groups, O ÷ groups, taps)
        kernel = kernel.unflatten(0, (groups_of_node(node), -1)).transpose(1, 2).flatten(0, 1)
    return kernel


def groups_of_node(node: fx.Node) -> int:
    """Return how many groups a convolution is divided into."""
    return int(argument(node, 6, "groups", 1))


def unpadded(node: fx.Node) -> bool:
    """Return whether a convolution sees no zeros around its image, so that a constant stays one."""
    padding = argument(node, 4, "padding", 0)
    plain = operator_name(node) in CONVOLUTIONS
    return (
        plain
        and not isinstance(padding, str)
        and not any(torch.atleast_1d(torch.tensor(padding, device="cpu")).tolist())
    )
