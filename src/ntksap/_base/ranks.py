"""`Ranks`: the processes that share one job. Alone, everything here is the identity."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from ntksap._base.errors import InputError, NtksapError
from ntksap._base.tree_sum import Tree, layout

Item = TypeVar("Item")
Value = TypeVar("Value")

_WITHIN_A_SUM: ContextVar[bool] = ContextVar("within a sum", default=False)


class RanksError(NtksapError, RuntimeError):
    """The processes of a job do not agree, or one of them is gone."""


class Ranks:
    """The processes of a process group, as one of them sees it.

    Args:
        group: a ``torch.distributed`` process group, such as ``torch.distributed.group.WORLD``; every process in it
            must then make the same calls. None means this process alone.

    >>> alone = Ranks()
    >>> alone.size, alone.first, list(alone.share(3))
    (1, True, [0, 1, 2])
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.rank == 0

    def share(self, count: int, rank: int | None = None) -> range:
        """Return which of ``count`` items a process works on (this one by default).

        Shares are contiguous and even; where ``count`` cannot be divided evenly, the first processes have one more.

        >>> [list(Ranks().share(3))]
        [[0, 1, 2]]
        """
        rank = self.rank if rank is None else rank
        each, more = divmod(count, self.size)
        start = rank * each + min(rank, more)
        return range(start, start + each + (rank < more))

    def sum(self, part: Callable[[Item], Mapping[str, Tensor]], items: Sequence[Item]) -> dict[str, Tensor]:
        """Return Σ part(item) by name, the same bits in every process and for every number of processes.

        Each process evaluates its share of the items and adds along the tree of `tree_sum`. The nodes are then
        exchanged, so that each process finishes one slice of the numbers, and the slices are gathered: about twice the
        size of one score is sent and received by a process, as in an all-reduce. A sum within a part is not split.
        """
        ranks = ALONE if _WITHIN_A_SUM.get() else self
        token = _WITHIN_A_SUM.set(True)
        try:
            tree, shapes = Tree(), None
            for index in ranks.share(len(items)):
                values = part(items[index])
                shapes = {name: value.shape for name, value in values.items()}
                tree.push(index, 0, torch.cat([value.detach().flatten() for value in values.values()]))
        finally:
            _WITHIN_A_SUM.reset(token)
        total = tree.total() if ranks.size == 1 else None
        if total is None:
            like = tree.nodes[-1][2] if tree.nodes else None
            shapes, dtype, length = ranks.from_first(lambda: (shapes, like.dtype, like.numel()))  # type: ignore[union-attr]
            total = ranks._finish(tree, len(items), length, dtype)
        assert shapes is not None
        sizes = [shape.numel() for shape in shapes.values()]
        return {name: flat.view(shape) for (name, shape), flat in zip(shapes.items(), total.split(sizes), strict=True)}

    def _finish(self, tree: Tree, count: int, length: int, dtype: torch.dtype) -> Tensor:
        """Return the sum of the nodes of all processes: vectors of ``length`` numbers over ``count`` leaves."""
        device = self._device()
        nodes = [layout(self.share(count, rank)) for rank in range(self.size)]  # (start, level) of each process's nodes
        width = -(-length // self.size)
        received: dict[int, tuple[int, Tensor]] = {}
        with explain_lost_ranks():
            for turn in range(max(map(len, nodes))):  # in each turn every process sends one node, a slice to each
                senders = [rank for rank in range(self.size) if turn < len(nodes[rank])]
                whole = torch.empty(0, dtype=dtype, device=device)
                if self.rank in senders:
                    whole = pad(tree.nodes[turn][2].to(device), (0, width * self.size - length))
                pieces = torch.empty(width * len(senders), dtype=dtype, device=device)
                dist.all_to_all_single(
                    pieces,
                    whole,
                    [width if rank in senders else 0 for rank in range(self.size)],
                    [len(whole) // self.size] * self.size,
                    group=self.group,
                )
                for rank, piece in zip(senders, pieces.split(width), strict=True):
                    start, level = nodes[rank][turn]
                    received[start] = level, piece
            slices = Tree()
            for start in sorted(received):
                slices.push(start, *received[start])
            gathered = [torch.empty(width, dtype=dtype, device=device) for _ in range(self.size)]
            dist.all_gather(gathered, slices.total(), group=self.group)
        return torch.cat(gathered)[:length]

    def add(self, tensor: Tensor) -> Tensor:
        """Return the sum of a small tensor over the processes (metrics; the order of addition is not fixed)."""
        if self.size == 1:
            return tensor
        total = tensor.detach().to(self._device(), copy=True)
        with explain_lost_ranks():
            dist.all_reduce(total, group=self.group)
        return total.to(tensor.device)

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the first process."""
        if self.size > 1:
            with explain_lost_ranks():
                for tensor in tensors:
                    dist.broadcast(tensor, self._global(0), group=self.group)

    def from_first(self, make: Callable[[], Value]) -> Value:
        """Return what ``make`` returns in the first process, in every process; if it raises there, raise everywhere.

        Other processes wait without calling ``make``.
        """
        if self.size == 1:
            return make()
        error: Exception | None = None
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = make()
            except Exception as raised:
                error, box[1] = raised, f"{type(raised).__name__}: {raised}"
        with explain_lost_ranks():
            dist.broadcast_object_list(box, src=self._global(0), group=self.group, device=self._device())
        if error is not None:
            raise error
        if box[1] is not None:
            raise RanksError(f"the first process stopped with {box[1]}")
        value: Value = box[0]
        return value

    def agree(self, what: str, value: str) -> None:
        """Raise in every process unless all have the same ``value``."""
        if self.size == 1:
            return
        values: list[Any] = [None] * self.size
        with explain_lost_ranks():
            dist.all_gather_object(values, value, group=self.group)
        if len(set(values)) > 1:
            others = "; ".join(f"process {rank} has {value[:12]}" for rank, value in enumerate(values))
            raise RanksError(f"the processes of this job must have the same {what}, but {others}")

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            with explain_lost_ranks():
                dist.barrier(group=self.group)

    def _global(self, rank: int) -> int:
        assert self.group is not None
        return dist.get_global_rank(self.group, rank)

    def _device(self) -> torch.device:
        backend = dist.get_backend(self.group)
        return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")


ALONE = Ranks()


@contextmanager
def explain_lost_ranks() -> Iterator[None]:
    """Turn the errors that torch raises in the others when a process of the job is gone into one that says so."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, NtksapError) or not any(word in str(error) for word in _SIGNS):
            raise
        raise RanksError(
            "another process of this job ended or cannot be reached. Nothing is lost: the same command resumes from "
            f"the last checkpoint, with any number of processes ({str(error).splitlines()[0]})"
        ) from error


_SIGNS = ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset", "Timed out")


@contextmanager
def join_job(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the job that ``torchrun`` started this process for, if it did; yield it and the device to work on.

    ``nccl`` between GPUs, ``gloo`` otherwise. Each process takes the GPU of its local rank.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield ALONE, device
        return
    if dist.is_initialized():
        yield Ranks(dist.group.WORLD), device
        return
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise InputError(
                f"process {local} of this machine has no GPU of its own: there are {torch.cuda.device_count()}; start "
                "as many processes as there are GPUs (torchrun --nproc-per-node gpu)"
            )
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Ranks(dist.group.WORLD), device
    finally:
        dist.destroy_process_group()
