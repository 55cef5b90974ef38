"""Sums that do not depend on how the work was split: a fixed binary tree over the indices of the summands.

Floating-point addition is not associative, so a sum has the same bits only if the same pairs are added. Here summand i
is leaf i of a binary tree; a node at level l covers 2ˡ leaves, beginning at a multiple of 2ˡ. Whoever has all leaves of
a node may add them up alone, and any split of the leaves into ranges ends in the same additions.
"""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Tree:
    """The nodes that are complete so far, in the order of their leaves.

    >>> import torch
    >>> tree = Tree()
    >>> for index in range(5):
    ...     tree.push(index, 0, torch.tensor([float(index)]))
    >>> [(start, level) for start, level, _ in tree.nodes]
    [(0, 2), (4, 0)]
    >>> tree.total()
    tensor([10.])
    """

    nodes: list[tuple[int, int, Tensor]] = field(default_factory=list)

    def push(self, start: int, level: int, value: Tensor) -> None:
        """Add the node whose leaves begin at ``start``; nodes come in order. ``value`` may be overwritten."""
        self.nodes.append((start, level, value))
        while len(self.nodes) > 1:
            (left, height, total), (right, level, value) = self.nodes[-2:]
            if height != level or left % (2 << level) or right != left + (1 << level):
                return
            self.nodes[-2:] = [(left, level + 1, total.add_(value))]

    def total(self) -> Tensor:
        """Return the sum of all nodes, from the last to the first; at most about log₂(leaves) of them are left."""
        _, _, total = self.nodes[-1]
        for _, _, value in self.nodes[-2::-1]:
            total = value.add_(total)
        return total


def layout(leaves: range) -> list[tuple[int, int]]:
    """Return (start, level) of the nodes that a `Tree` has after these leaves, without adding anything.

    >>> layout(range(3, 8))
    [(3, 0), (4, 2)]
    """
    found, start = [], leaves.start
    while start < leaves.stop:
        level = 0
        while start % (2 << level) == 0 and start + (2 << level) <= leaves.stop:
            level += 1
        found.append((start, level))
        start += 1 << level
    return found
