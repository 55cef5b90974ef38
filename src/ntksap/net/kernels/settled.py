"""Spares layers the question which way to go, in calls of a whole module where torch is known to do their work.

To look up what was chosen takes a layer a few microseconds, which is a loss where torch then does the work anyway. So
what the layers did in the first call of the whole module decides about the calls with inputs of the same shapes that
follow: in these, a layer that was left to torch calls torch at once. The numbers are the same to the last bit.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _get_tracing_state as _tracing_state
from torch.compiler import is_compiling
from torch.nn import functional

from ntksap.net.kernels.chain import Chain
from ntksap.net.kernels.chains import Borrowed, Chained
from ntksap.net.kernels.choice import TORCH, Chooser
from ntksap.net.kernels.chosen import ChosenBatchNorm2d, ChosenConv2d, ChosenLinear
from ntksap.net.kernels.layers import become


class SettledConv2d(ChosenConv2d):
    """A convolution that is left to torch."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C', H', W')."""
        own = self._parameters  # as attributes, Python finds them later than anything else
        return functional.conv2d(x, own["weight"], own["bias"], self.stride, self.padding, self.dilation, self.groups)  # type: ignore[arg-type]


class SettledLinear(ChosenLinear):
    """A linear layer that is left to torch."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        own = self._parameters
        return functional.linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]


class SettledBatchNorm2d(ChosenBatchNorm2d):
    """A BatchNorm2d that is left to torch, in training."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C, H, W)."""
        return nn.BatchNorm2d.forward(self, x)


_SETTLED = {ChosenConv2d: SettledConv2d, ChosenLinear: SettledLinear, ChosenBatchNorm2d: SettledBatchNorm2d}
"""Layers that do what torch does, to the last bit, where they are left to torch. Chains can use both."""


class Change(NamedTuple):
    """A part of a module, the class with which it chooses, and the one that it has where it is left to torch."""

    part: nn.Module
    choosing: type[nn.Module]
    settled: type[nn.Module]


class Settlement:
    """Which parts of a module are left to torch, for each situation in which the whole module was called.

    Args:
        module: the whole module.
        changes: its parts that choose, but may be left to torch.
    """

    def __init__(self, module: nn.Module, changes: Sequence[Change]) -> None:
        self.now: object = None
        """The situation that the parts have the classes for; None: all choose."""
        self._known: dict[object, Sequence[Change]] = {}
        self._changes, self._parameters = changes, list(module.parameters())
        parts = [part for change in changes for part in (change.part, *_chains(change.part))]
        self._choosers: list[Chooser] = [vars(part)["chooser"] for part in parts if "chooser" in vars(part)]

    def situation(self, training: bool, given: tuple[Any, ...], named: Mapping[str, Any]) -> object:
        """Return what the choices of all parts depend on; None if that cannot be told from shapes."""
        if _tracing_state() is not None or is_compiling():
            return None
        learns = torch.is_grad_enabled()
        found = [training, learns, torch.get_num_threads(), torch.is_autocast_enabled("cpu"), *named]
        for value in (*given, *named.values()):
            if type(value) is Tensor:
                found += (value.shape, value.stride(), value.dtype, learns and value.requires_grad)
            elif value is None or type(value) in (bool, int, str):
                found.append(value)
            else:
                return None
        if learns:
            found += [parameter.requires_grad for parameter in self._parameters]
        return tuple(found)

    def change(self, situation: object) -> bool:
        """Give the parts their classes for this situation; return whether it is new, so that they must be watched."""
        for part, choosing, _ in self._known.get(self.now, ()):
            _set(part, "__class__", choosing)
        self.now, changes = situation, self._known.get(situation)
        for part, _, settled in changes or ():
            _set(part, "__class__", settled)
        return changes is None and situation is not None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let what the parts do in the block decide about the situation."""
        for chooser in self._choosers:
            chooser.gone.clear()
        situation, self.now = self.now, None
        yield
        self._known[situation] = tuple(change for change in self._changes if _left_to_torch(change.part))


_set = object.__setattr__  # that of modules looks for parameters first


def _left_to_torch(part: nn.Module) -> bool:
    """Whether torch did this part's work since somebody began to watch."""
    if isinstance(part, Chained):
        return all(chain.chooser.gone <= {TORCH} for chain in _chains(part))
    chooser: Chooser = vars(part)["chooser"]
    return chooser.gone == {TORCH}


def _chains(part: nn.Module) -> list[Chain]:
    return [value for value in vars(part).values() if isinstance(value, Chain)]


@contextmanager
def settling(module: nn.Module, parts: Mapping[nn.Module, type[nn.Module]]) -> Iterator[None]:
    """Inside the block, calls of the whole module settle; ``parts``: those that choose, and their own classes."""
    whole = type(module)
    if not parts or (module in parts and not isinstance(module, Chained)):  # a single layer
        yield
        return
    changes = []
    for part, own in parts.items():
        settled = own if isinstance(part, Chained) else _SETTLED.get(type(part))
        if settled is not None and part is not module:
            changes.append(Change(part, type(part), settled))
    other = _settled_class(parts.get(module, whole), whole)  # type: ignore[arg-type]
    with become({module: other}, {module: {"_settlement": Settlement(module, changes)}}):
        yield


@functools.cache
def _settled_class(own: type[nn.Module], chosen: type[nn.Module]) -> type[nn.Module]:
    """Return what a whole module becomes, which has become ``chosen`` already; ``own`` is its own class."""

    def call(self: Any, *given: Any, **named: Any) -> Any:
        settlement: Settlement = self._settlement
        situation = settlement.situation(self.training, given, named)
        if situation != settlement.now and settlement.change(situation):
            with settlement.watching():
                return chosen.__call__(self, *given, **named)
        return chosen.__call__(self, *given, **named)

    bases = (chosen,) if issubclass(chosen, Borrowed) else (Borrowed, chosen)
    return type(f"Settled{own.__name__}", bases, {"__call__": call, "_own": own})
