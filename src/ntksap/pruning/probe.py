"""`Probe`: the inputs that scores are computed on, and the one place where scores are summed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ntksap._base import ALONE, InputError, Ranks, generator_of
from ntksap.net import Inputs, Net, map_tensors, unwrap
from ntksap.pruning.masks import Masks
from ntksap.pruning.micro_batches import MicroBatches
from ntksap.pruning.trainer import Trainer

Batch: TypeAlias = tuple[Inputs, Any]
"""(inputs, labels); labels are None where there are none."""

Data: TypeAlias = Iterable[Batch] | Callable[[int], Iterable[Batch]]
"""Batches, or a function from the number of an epoch (from 0) to its batches."""

MakeInputs: TypeAlias = Callable[[int, torch.Generator], Inputs]
"""(batch size, generator) → the arguments of the module: a tensor, a tuple, or a dict of keyword arguments."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Probe:
    """Noise, ones, or a few training batches, for one round of one pruning.

    Args:
        seed, round: all that randomness depends on, together with a draw's index.
        input_shape: shape of one input without the batch, for modules that take one tensor of numbers.
        make_inputs: makes the module's arguments where ``input_shape`` does not say enough (token ids, several inputs).
        batches: (inputs, labels) pairs, the pruning set.
        source: where epochs are streamed from, see `epoch`.
        ranks: the processes that share the work.
        micro: how a batch is cut when it does not fit into memory.
        trainer: what trains the network, for methods that do.
    """

    seed: int = 0
    round: int = 1
    input_shape: tuple[int, ...] | None = None
    make_inputs: MakeInputs | None = None
    batches: Sequence[Batch] = ()
    source: Data | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    ranks: Ranks = ALONE
    micro: MicroBatches = field(default_factory=MicroBatches)
    trainer: Trainer | None = None

    @classmethod
    def of(
        cls,
        net: Net,
        *,
        seed: int = 0,
        input_shape: Sequence[int] | None = None,
        inputs: MakeInputs | None = None,
        data: Data | None = None,
        stream: bool = False,
        micro_batch: int | None = None,
        ranks: Ranks = ALONE,
        trainer: Trainer | None = None,
    ) -> "Probe":
        """Return the probe for ``net``, its batches on the device and in the dtype of the net.

        The batches of ``data`` are held as the pruning set or, with ``stream``, taken one by one by `epoch`.
        """
        held = () if stream or data is None else _epoch_of(data, 0)
        batches = [_place(_checked(batch), net.dtype, net.device) for batch in held]
        shape = tuple(input_shape) if input_shape is not None else None
        return cls(
            seed=seed,
            input_shape=shape,
            make_inputs=inputs,
            batches=batches,
            source=data if stream else None,
            dtype=net.dtype,
            device=net.device,
            ranks=ranks,
            micro=MicroBatches(micro_batch),
            trainer=trainer,
        )

    def at(self, round: int) -> "Probe":
        """Return the probe of another round."""
        return replace(self, round=round)

    def noise(self, index: int, batch: int) -> Inputs:
        """Return the inputs of draw ``index``: standard normal (batch, *input_shape), or what ``inputs=`` makes."""
        generator = self.generator("noise", index)
        if self.make_inputs is not None:
            return _place_inputs(self.make_inputs(batch, generator), self.dtype, self.device)
        noise = torch.randn(batch, *self._shape(), generator=generator, dtype=torch.float32, device="cpu")
        return noise.to(self.device, self.dtype)

    def ones(self, dtype: torch.dtype) -> Inputs:
        """Return one input of ones; where ``inputs=`` makes the arguments, its floating-point tensors become ones."""
        if self.make_inputs is None:
            return torch.ones(1, *self._shape(), dtype=dtype, device=self.device)
        made = _place_inputs(self.make_inputs(1, generator_of("ones")), dtype, self.device)  # whatever seed or round
        ones: Inputs = map_tensors(made, lambda t: torch.ones_like(t) if t.is_floating_point() else t)
        return ones

    def labelled(self) -> Sequence[Batch]:
        """Return the batches of the pruning set, or raise if there are none or they have no labels."""
        if not self.batches:
            raise InputError(
                "this method needs labelled data: pass data=, an iterable of (inputs, labels) batches with about ten "
                "samples of each class (on the command line: --data digits), or choose a method that needs none"
            )
        if any(labels is None for _, labels in self.batches):
            raise InputError("this method needs labels, but a batch of data= has None in their place")
        return self.batches

    def unlabelled(self) -> Sequence[Batch]:
        """Return the batches of the pruning set, with or without labels, or raise if there are none."""
        if not self.batches:
            raise InputError(
                "this method needs inputs: pass data=, an iterable of (inputs, labels) batches, where labels may be "
                "None (on the command line: --data digits), or choose a method that needs none"
            )
        return self.batches

    def epoch(self, index: int, *, labelled: bool) -> Iterator[Batch]:
        """Yield the batches of an epoch (from 0) one by one, or raise if there are none, or if labels are missing."""
        if self.source is None:
            what, who = ("labelled data", "(inputs, labels)") if labelled else ("inputs", "(inputs, None)")
            raise InputError(
                f"this method needs {what}: pass data=, the {who} batches of an epoch, such as a DataLoader (on the "
                "command line: --data digits), or choose a method that needs none"
            )
        empty = True
        for batch in _epoch_of(self.source, index):
            empty = False
            inputs, labels = _place(_checked(batch), self.dtype, self.device)
            if labelled and labels is None:
                raise InputError("this method needs labels, but a batch of data= has None in their place")
            yield inputs, labels
        if empty:
            used_up = index or isinstance(self.source, Iterator)  # even the first epoch may be read twice
            again = (
                ": pass something that can be iterated over again, such as a DataLoader or a list" if used_up else ""
            )
            raise InputError(f"data= has no batches in epoch {index + 1}{again}")

    def trained(self, weights: Mapping[str, Tensor], masks: Masks) -> Iterator[dict[str, Tensor]]:
        """Yield the weights after each epoch of training from ``weights`` under ``masks``; raise without a trainer."""
        if self.trainer is None:
            raise InputError(
                "this method trains the network: pass train=, a function (module, masks) that trains the module and "
                "yields after each epoch; on the command line, use `ntksap train` or `ntksap compare`"
            )
        yield from self.trainer(weights, masks)

    def generator(self, *key: int | str) -> torch.Generator:
        """Return a generator for one purpose in this round; another purpose, round or seed gives another."""
        return generator_of(self.seed, self.round, *key)

    def key(self, *key: int | str) -> tuple[int | str, ...]:
        """Return the full key of one purpose in this round."""
        return (self.seed, self.round, *key)

    def sum(self, part: Callable[[Item], dict[str, Tensor]], items: Iterable[Item]) -> dict[str, Tensor]:
        """Return the sum of ``part(item)`` over the items by name: the same bits however many processes share it."""
        return {name: total.to(self.device) for name, total in self.ranks.sum(part, list(items)).items()}

    def _shape(self) -> tuple[int, ...]:
        if self.input_shape is None:
            raise InputError(
                "the shape of the inputs is unknown: pass input_shape=, such as (3, 32, 32), or inputs=, a callable "
                "(batch size, generator) -> arguments"
            )
        return self.input_shape


def one_input(module: nn.Module, input_shape: Sequence[int] | None, make_inputs: MakeInputs | None) -> Inputs:
    """Return one input for a module, in its dtype and on its device."""
    first = next(iter(unwrap(module).parameters()), torch.empty(0, device="cpu"))
    shape = None if input_shape is None else tuple(input_shape)
    return Probe(input_shape=shape, make_inputs=make_inputs, dtype=first.dtype, device=first.device).noise(0, batch=1)


def _epoch_of(data: Data, index: int) -> Iterable[Batch]:
    return data(index) if callable(data) else data


def _checked(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError(f"data= must yield (inputs, labels) pairs, not {type(batch).__name__}; labels may be None")
    return batch[0], batch[1]


def _place(batch: Batch, dtype: torch.dtype, device: torch.device | str) -> Batch:
    inputs, labels = batch
    return _place_inputs(inputs, dtype, device), map_tensors(labels, lambda t: t.to(device))


def _place_inputs(inputs: Inputs, dtype: torch.dtype, device: torch.device | str) -> Inputs:
    placed: Inputs = map_tensors(inputs, lambda t: t.to(device, dtype) if t.is_floating_point() else t.to(device))
    return placed
