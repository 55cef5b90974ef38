"""The table of rules: for an operator's name, what it does to the ids of its arguments."""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor, fx, nn

from ntksap._base import InputError
from ntksap.compaction.graph import described, operator_name, owner_of
from ntksap.compaction.ids import Axes, Ints, Units

Rule: TypeAlias = Callable[..., Any]
"""``(op, *arguments, **keywords) -> Axes``, or a list of them for several results; tensors come as `Axes`."""

Decorated = TypeVar("Decorated", bound=Rule)

RULES: dict[str, Rule] = {}
"""{name of an ATen operator without overload and closing underscore: its rule}."""


def rule(*names: str, replace: bool = False) -> Callable[[Decorated], Decorated]:
    """Register the rule of operators by name.

    >>> @rule("erfinv")
    ... def erfinv(op, x):
    ...     return x  # an elementwise function leaves channels where they are
    """

    def register(function: Decorated) -> Decorated:
        for name in names:
            if name in RULES and not replace:
                raise InputError(f"there is already a rule for {name!r}; pass replace=True to put another in its place")
            RULES[name] = function
        return function

    return register


class Operator:
    """One operator of the graph, as its rule sees it."""

    def __init__(
        self,
        node: fx.Node,
        module: nn.Module,
        units: Units,
        inexact: Iterable[str],
        rigid: Iterable[str],
        apart: bool = False,
        known: Mapping[fx.Node, Tensor] | None = None,
        signals: Container[fx.Node] = (),
    ):
        """Take the node, the whole module, the ids, operators that may be inexact and classes whose sizes are fixed.

        ``apart``: nothing is to be removed, so the groups of a layer need not stay the same size. ``known``: what is
        in placeholders that do not depend on the inputs. ``signals``: nodes that do.
        """
        self.node = node
        self.units = units
        self.name = operator_name(node)
        self.path = owner_of(node)
        self.owner = module.get_submodule(self.path)
        self.exact = self.name not in inexact
        self.rigid = type(self.owner).__qualname__ in rigid
        self.apart = apart
        self.known, self.signals = known or {}, signals
        self.sized = False
        self.moved = self.lost = False

    def unite(self, first: Ints, second: Ints) -> None:
        """Let indices live or die together, pairwise."""
        self.units.unite(first, second, f"combined with an axis of fixed size by {described(self.node)}")

    def unite_rows(self, grid: Ints) -> Ints:
        """Unite ``grid`` (rows, columns) down each column, and return one id for each column."""
        first: Ints = grid[0]
        for row in grid[1:]:
            self.unite(first, row)
        return first

    def freeze(self, ids: Ints, why: str) -> None:
        """Let indices never be removed."""
        if ids.any():
            self.units.freeze(ids[ids != 0], f"{why} ({described(self.node)})")

    def freeze_all(self, values: Any, why: str) -> None:
        """Freeze every axis of every tensor in a nest of arguments."""
        for axes in _all_axes(values):
            for ids in axes.ids:
                self.freeze(ids, why)

    def carry_size(self, ids: Ints) -> None:
        """Note that the module's own code holds the size of an axis; freeze it where that code cannot follow."""
        if not np.any(self.units.free(ids)):
            return
        if self.rigid:
            self.freeze(ids, f"the code of {type(self.owner).__qualname__} holds its size")
        else:
            self.sized = True


def _all_axes(values: Any) -> Iterable[Axes]:
    if isinstance(values, Axes):
        yield values
    elif isinstance(values, dict):
        yield from _all_axes(list(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _all_axes(value)
