"""`MicroBatches`: cut a batch into slices when its graph does not fit into memory."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ntksap._base import InputError, MemoryWarning, available_memory_mib
from ntksap.net import Inputs, Net, map_tensors

Result = TypeVar("Result")

SHARE = 0.6
"""How much of the free memory a graph may take by the estimate, which leaves out short-lived tensors."""


class MicroBatches:
    """Slices of at most ``size`` inputs; with None, the whole batch as long as memory lasts.

    Cutting is exact where the sum over inputs is a sum over slices: each input is treated by itself, BatchNorm's
    statistics being constants of the whole batch. Where a trial shows that this is not so (the nodes of a graph,
    sequences whose first dimension is time), a batch stays whole. On a GPU, running out of memory halves the size. On a
    CPU the process would be killed instead, so there the size is chosen beforehand, from what one input leaves in a
    graph.
    """

    def __init__(self, size: int | None = None) -> None:
        if size is not None and size < 1:
            raise InputError(f"micro_batch must be at least 1, not {size}")
        self.size = size
        self._fitted = False
        self._divisible = True

    def fit(self, net: Net, leaves: Mapping[str, Tensor], inputs: Inputs, *, graphs: int) -> None:
        """Choose the size, once, for ``graphs`` graphs of one evaluation each that live at the same time.

        Raises InputError if a size was asked for and the inputs cannot be cut.
        """
        if self._fitted or (count := count_of(inputs)) < 2:
            return
        self._fitted = True
        if self.size is not None and self.size >= count:
            return
        self._divisible = divisible(net, leaves, inputs, count)
        if not self._divisible and self.size is not None:
            raise InputError("these inputs cannot be cut into slices: outputs depend on all of them. Omit micro_batch")
        if not self._divisible or self.size is not None or net.device.type != "cpu":
            return
        if (free := available_memory_mib()) is None:
            return
        some = min(2, count - 1)  # a single input may go through other kernels, which keep other tensors
        few, more = (net.graph_mib(leaves, slice_of(inputs, 0, size, count)) for size in (some, some + 1))
        each = graphs * (more - few)
        room = int(SHARE * free / each) if each > 0 else count
        if room < count:
            self._halve(count, to=max(1, room), why=f"a whole batch needs about {each * count:.0f} MiB")

    def run(self, work: Callable[[list[Inputs]], Result], inputs: Inputs) -> Result:
        """Return ``work(slices)``; if memory runs out, try again with smaller ones."""
        while True:
            count = count_of(inputs)
            size = min(self.size or count, count) if self._divisible else count
            slices = [slice_of(inputs, start, start + size, count) for start in range(0, count, max(1, size))]
            try:
                return work(slices if len(slices) > 1 else [inputs])
            except RuntimeError as error:
                if size < 2 or not self._divisible or not _out_of_memory(error):
                    raise
            self._halve(count, to=-(-size // 2), why="memory ran out")
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _halve(self, count: int, *, to: int, why: str) -> None:
        self.size = to
        text = f"{why}: batches of {count} are processed in slices of {to}, with the same result (micro_batch={to})"
        warnings.warn(text, MemoryWarning, stacklevel=4)


def count_of(inputs: Inputs) -> int:
    """Return how many inputs a batch holds: the length of its first tensor."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.dim()]
    return len(tensors[0]) if tensors else 1


@torch.no_grad()
def divisible(net: Net, weights: Mapping[str, Tensor], inputs: Inputs, count: int) -> bool:
    """Return whether each of ``count`` inputs goes through the net by itself, as far as the first three show.

    That is, whether inputs have the same outputs in a slice as in the whole batch.
    """
    most = min(3, count)
    try:
        some = net(weights, slice_of(inputs, 0, most, count))
        first, rest = (net(weights, slice_of(inputs, *ends, count)) for ends in ((0, 1), (1, most)))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a module raises that cannot handle only some of its inputs
        return False
    if not some.dim() or len(some) != most or len(first) != 1 or len(rest) != most - 1:
        return False
    apart = (torch.cat([first, rest]) - some).abs().nan_to_num(nan=0.0)
    return bool(apart.max() <= math.sqrt(net.eps) * some.abs().nan_to_num(nan=0.0).max())


def slice_of(inputs: Inputs, start: int, end: int, count: int) -> Inputs:
    """Return inputs ``start`` to ``end`` of ``count``: a slice of each tensor with one entry per input, else all."""
    cut: Inputs = map_tensors(inputs, lambda t: t[start:end] if t.dim() and len(t) == count else t)
    return cut


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
