"""Demands on the tensors of a graph: what every rule of `ntksap.compaction.demand` adds to, and the general rules."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from ntksap.compaction.graph import operator_name
from ntksap.compaction.values import Known, Values, call

Demands: TypeAlias = dict[fx.Node, Tensor]
"""{node: bool tensor of its shape, True where an output depends on the entry}."""


@dataclass(frozen=True)
class Fold:
    """A layer whose bias can take over what constant inputs contribute: ``bias += weight · constant``.

    Attributes:
        bias: the placeholder of the bias.
        source: the node of the input.
        dim: its channel dimension.
        weight: (outputs, inputs).
        constant: (inputs), 0 where it is not constant.
    """

    bias: fx.Node
    source: fx.Node
    dim: int
    weight: Tensor
    constant: Tensor


class Backward:
    """The demands found so far."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.found: Demands = {}
        self.folds: list[Fold] = []

    def add(self, node: Any, wanted: Tensor) -> None:
        """Add to the demand on a node."""
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor):
            wanted = wanted.expand(tuple(node.meta["val"].shape))
            self.found[node] = wanted | self.found[node] if node in self.found else wanted

    def of_node(self, node: fx.Node) -> list[Tensor | None]:
        """Return the demand on each result of a node."""
        if isinstance(node.meta.get("val"), Tensor):
            return [self.found.get(node, torch.zeros((), dtype=torch.bool, device="cpu"))]
        parts: list[Tensor | None] = [None] * len(node.meta.get("val") or ())
        for user in node.users:
            if user.target is getitem and user in self.found:
                place = int(user.args[1])  # type: ignore[arg-type]
                earlier = parts[place]
                parts[place] = self.found[user] if earlier is None else earlier | self.found[user]
        return parts


def everything(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    """Want all of every argument: what the operator does with them is not known."""
    for source in node.all_input_nodes:
        work.add(source, torch.ones((), dtype=torch.bool, device="cpu"))
        value = source.meta.get("val")
        if isinstance(value, tuple | list):
            for user in source.users:
                work.add(user, torch.ones((), dtype=torch.bool, device="cpu"))


def elementwise(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    """Want of every argument what is wanted of the result, except for factors of 0."""
    assert wanted[0] is not None
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if not isinstance(value, Tensor):
            continue
        reaches = wanted[0]
        if operator_name(node) in ("mul", "multiply"):
            for other in node.all_input_nodes:
                if other is not source and isinstance(work.values[other], Known):
                    reaches = reaches & ~work.values[other].zero
        work.add(source, _summed_to(reaches.expand(tuple(node.meta["val"].shape)), tuple(value.shape)))


def _summed_to(wanted: Tensor, shape: tuple[int, ...]) -> Tensor:
    result: Tensor = wanted.float().sum_to_size(shape) != 0
    return result


def moving(work: Backward, node: fx.Node, wanted: list[Tensor | None]) -> None:
    """Take the derivative of the operator itself, which is linear."""
    sources = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    leaves = {n: torch.zeros(tuple(n.meta["val"].shape), requires_grad=True, device="cpu")
              for n in sources if n.meta["val"].is_floating_point()}  # fmt: skip
    if not leaves or any(n not in leaves and work.values[n].unknown.any() for n in sources):
        return everything(work, node, wanted)

    def one(source: fx.Node) -> Any:
        return leaves[source] if source in leaves else work.values[source].value

    with torch.enable_grad():
        result = call(node, one)
        results = list(result) if isinstance(result, tuple | list) else [result]
        pairs = [(r, w) for r, w in zip(results, wanted, strict=True) if w is not None and r.requires_grad]
        if not pairs:
            return None
        outputs, cotangents = zip(*[(r, w.expand(r.shape).to(r.dtype)) for r, w in pairs], strict=True)
        derivatives = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)
    for source, derivative in zip(leaves, derivatives, strict=True):
        if derivative is not None:
            work.add(source, derivative != 0)
    return None


Rule: TypeAlias = Callable[[Backward, fx.Node, list[Tensor | None]], None]
"""(demands so far, node, demand on each of its results) adds the demands on its arguments."""
