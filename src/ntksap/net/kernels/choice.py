"""Which way the layers of a module work: chosen by measuring, once for each situation."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _get_tracing_state as _tracing_state
from torch.compiler import is_compiling
from torch.utils.weak import WeakIdKeyDictionary

from ntksap.net.kernels import memory
from ntksap.net.kernels.memory import Choice

TORCH, DENSE, KEPT = "torch", "dense", "kept"
"""The ways: torch's own kernels, dense kernels of this package, and those that touch the kept weights only."""

LEAD = 0.9
"""The most of torch's time that a way may take to be chosen: a smaller gain is not certain."""

SWITCH = 20e-6
"""The least seconds that a way must save. In a network, a processor that comes to a kernel from others must fetch its
code and learn its branches again, and then those of the next kernel; in a loop that times the kernel, it knows them."""

CLUTTER = 2**20
"""How many numbers are written to empty the caches of a core, as the other layers of a network do. On full caches,
kernels with many lists seem faster than they are; on empty ones, torch's code seems slower."""

ROUNDS = {2: 0.5, 4: 0.1, 16: 0.0}
"""How often each way is timed, {times: seconds}: that many times are enough once that many seconds have passed."""


class Choices:
    """What was chosen: {layer and situation: way}. Prints as a table.

    True where so few weights are kept in most convolutions that images are best given with channels first.
    """

    def __init__(self, ways: Mapping[str, str] | None = None) -> None:
        """Begin with earlier choices, which then hold, or with none."""
        self.ways = dict(ways or {})
        self.seconds: dict[str, Mapping[str, float]] = {}
        self.channels_first = False

    def __bool__(self) -> bool:
        return self.channels_first

    def __repr__(self) -> str:
        """Return a line for each layer and situation: the way, and the milliseconds of each where they are known."""
        wide = max(map(len, self.ways), default=0)
        lines = []
        for key, way in self.ways.items():
            times = ", ".join(f"{other} {1e3 * taken:.3g} ms" for other, taken in self.seconds.get(key, {}).items())
            lines.append(f"{key:<{wide}}  {way:<5}  {times}".rstrip())
        return "\n".join(lines) or "nothing was chosen: no layer has kernels to choose from, or none was called"


class Chooser:
    """Chooses for one layer, and remembers.

    Args:
        name: the layer's name in the record.
        kind: what the layer is (geometry, shape of the weights): the machine remembers what is faster for each kind.
        kept: masks of its weights; roughly how many are kept is part of what it is.
        choices: the record.
    """

    def __init__(self, name: str, kind: str, kept: Sequence[Tensor], choices: Choices) -> None:
        self._name, self._kind, self._kept, self._choices = name, kind, kept, choices
        self._known: dict[tuple[object, ...], str] = {}
        self._left: dict[object, tuple[int, ...]] = {}
        """{shape, and which derivatives were asked for: strides} of inputs that were left to torch."""
        self.gone: set[str] = set()
        """Ways that the layer went since somebody cleared this, see `ntksap.net.kernels.settled`."""

    def leaves_to_torch(self, x: Tensor, weight: Tensor, *mode: bool) -> bool:
        """Return whether torch is known to be fastest for inputs like x, and nothing records what is done to them.

        Ask this first: it takes less time than finding out whether other kernels could be used at all. ``mode`` is
        what the ``learns`` of `way` says besides derivatives with respect to x and the weight.
        """
        if type(x) is not Tensor or _tracing_state() is not None or is_compiling():
            return False
        learns = (x.requires_grad, weight.requires_grad) if torch.is_grad_enabled() else (False, False)
        if self._left.get((x.shape, *learns, *mode)) != x.stride():
            return False
        self.gone.add(TORCH)
        return True

    def way(self, x: Tensor, learns: tuple[bool, ...], ways: Callable[[], Mapping[str, Callable[[], object]]]) -> str:
        """Return the way to go for inputs like x (N, …).

        ``learns``: which derivatives will be asked for; ``ways()`` returns the ways that exist, each of which does
        all of the work once when it is called.
        """
        found = self.known(x, learns)
        if found is None:
            found = self._known[_key(x, learns)] = self._decide(_situation(x, learns), ways())
            if found == TORCH:
                self._left[(x.shape, *learns)] = x.stride()
        self.gone.add(found)
        return found

    def known(self, x: Tensor, learns: tuple[bool, ...]) -> str | None:
        """Return the way to go for inputs like x if it was chosen before."""
        return self._known.get(_key(x, learns))

    def _decide(self, situation: str, ways: Mapping[str, Callable[[], object]]) -> str:
        entry = f"{self._name} {situation}"
        way = self._choices.ways.get(entry)
        if way is None:
            if len(ways) == 1:
                return next(iter(ways))  # nothing to choose, nothing to record
            density = " ".join(density_of(mask).word for mask in self._kept)
            key = f"{self._kind} {density} {situation} {torch.get_num_threads()} threads"
            # What is saved for derivatives here must not reach hooks of others, such as activation checkpointing.
            with torch.autograd.graph.saved_tensors_hooks(_same, _same):
                choice = memory.recall(key) or memory.remember(key, _fastest(measure(ways)))
            way = self._choices.ways[entry] = choice.way
            self._choices.seconds[entry] = choice.seconds
        return way if way in ways else TORCH


class Density(NamedTuple):
    """How many weights a mask keeps, and a word for it: masks with the same word go the same way."""

    kept: int
    word: str


def density_of(kept: Tensor) -> Density:
    """Return the density of a mask, from memory if this very tensor was asked for before."""
    found = _densities.get(kept)
    if found is None or found[0] != kept._version:
        found = _densities[kept] = (kept._version, _density(kept))
    density: Density = found[1]
    return density


_densities: Any = WeakIdKeyDictionary()


def _density(kept: Tensor) -> Density:
    count = int(kept.count_nonzero())
    if not count:
        return Density(0, "0")
    fours = kept.view(-1, 4, kept.shape[1]) if kept.dim() == 2 and len(kept) % 4 == 0 and kept.is_contiguous() else None
    alike = fours is not None and bool((fours[:, 1:] == fours[:, :1]).all())  # as in masks of blocks
    return Density(count, f"1/{2 ** (round(4 * math.log2(kept.numel() / count)) / 4):.3g}{' in fours' * alike}")


def learning(x: Tensor, *weights: Tensor) -> tuple[bool, ...]:
    """Return which derivatives will be asked for."""
    if not torch.is_grad_enabled():
        return (False,) * (1 + len(weights))
    return (x.requires_grad, *(weight.requires_grad for weight in weights))


def whole(
    work: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    learns: tuple[bool, ...],
) -> Callable[[], object]:
    """Return a function that does a layer's work once: the forward pass, and the backward pass where it will be needed.

    It works on leaves of its own, so that none of the user's hooks notices.
    """
    leaves = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip((x, weight), learns, strict=True)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    bias = None if bias is None else bias.detach()

    def once() -> None:
        with torch.set_grad_enabled(bool(wanted)):
            y = work(leaves[0], leaves[1], bias)
        if wanted:
            torch.autograd.grad(y, wanted, torch.ones_like(y))

    return once


def _key(x: Tensor, learns: tuple[bool, ...]) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, learns, torch.get_num_threads()


def _situation(x: Tensor, learns: tuple[bool, ...]) -> str:
    """Return a word for the shape and layout of inputs: batch sizes within a factor of two are one situation."""
    images = x.dim() == 4
    rest = x.shape[1:] if images else x.shape[-1:]
    count = math.prod(x.shape) // max(1, math.prod(rest))
    size = "×".join(map(str, (1 << (count.bit_length() - 1), *rest)))
    layout = ", channels last" if images and not x.is_contiguous() else ""
    purpose = f", derivatives {''.join(str(int(wanted)) for wanted in learns)}" if any(learns) else ""
    return f"{size}{layout}{purpose}, {str(x.dtype).removeprefix('torch.')}"


def _fastest(seconds: Mapping[str, float]) -> Choice:
    """Return the fastest of the ways that were timed; torch's if none is clearly faster."""
    best = min(seconds, key=seconds.__getitem__)
    return Choice(best if seconds[best] <= min(LEAD * seconds[TORCH], seconds[TORCH] - SWITCH) else TORCH, seconds)


def measure(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least seconds of each way, timed in turn; one that is far behind twice is not timed again.

    Each is timed on empty caches and at once again on full ones. In a network, caches are neither: a layer's input has
    just been written, its weights have not been read for a while, and torch's code has run in the layer before. So
    what counts is the worse of the two shares of torch's time, here in terms of torch's seconds on empty caches.
    """
    empty, full = dict.fromkeys(ways, math.inf), dict.fromkeys(ways, math.inf)
    clutter = torch.zeros(CLUTTER, device="cpu")
    for work in (clutter.zero_, *ways.values()):
        work()  # traversals are made, memory is taken
    begin = time.perf_counter()
    # For one thread, its own processor time, whatever else the machine does; several threads wait for one another.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for count in range(max(ROUNDS)):
        if any(count >= least and time.perf_counter() - begin > passed for least, passed in ROUNDS.items()):
            break
        for way, work in ways.items():
            if count > 1 and empty[way] > 3 * min(empty.values()):
                continue
            clutter.add_(1)
            for seconds in (empty, full):
                start = clock()
                work()
                seconds[way] = min(seconds[way], clock() - start)
    return {way: max(empty[way], full[way] / full[TORCH] * empty[TORCH]) for way in ways}


def _same(value: Any) -> Any:
    return value
