"""Training as methods see it: whatever trains the network in the end, from given weights under given masks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ntksap._base import InputError, global_seed
from ntksap.net import copy_of, unwrap
from ntksap.pruning.masks import Masks

Train: TypeAlias = Callable[[nn.Module, Masks], Iterable[object]]
"""``train(module, masks)`` trains the module in place and yields something after each epoch. Its pruned weights are
zero, and the masks are attached, so that they stay zero."""

Trainer: TypeAlias = Callable[[Mapping[str, Tensor], Masks], Iterator[dict[str, Tensor]]]
"""(weights to start from, masks) → the weights after each epoch, by name."""


def trainer_of(model: nn.Module, train: Train, seed: int) -> Trainer:
    """Return a trainer that trains copies of ``model`` with ``train``; the model itself stays as it is.

    What ``train`` draws from torch's global generator depends on the seed and the number of the epoch alone.
    """

    def epochs(weights: Mapping[str, Tensor], masks: Masks) -> Iterator[dict[str, Tensor]]:
        twin = copy_of(unwrap(model)).train()
        parameters = dict(twin.named_parameters())
        with torch.no_grad():
            for name, weight in weights.items():
                parameters[name].copy_(weight)
        masks.attach(twin, rescale=False)
        records = _records(train(twin, masks))
        epoch, done = 0, object()
        while True:
            with global_seed(seed, "train", epoch):
                record = next(records, done)
            if record is done:
                break
            epoch += 1
            if not masks.obeyed_by(twin):
                raise InputError("train= changed pruned weights without the optimizer: they must stay zero")
            yield {name: parameter.detach().clone() for name, parameter in twin.named_parameters()}

    return epochs


def _records(returned: object) -> Iterator[object]:
    if not isinstance(returned, Iterable):
        raise InputError(
            f"train= returned {returned!r}, but it must yield after each epoch: write `yield` at the end of its loop"
        )
    return iter(returned)
