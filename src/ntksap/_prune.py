"""`prune`: from a module and a sparsity to masks, in one call."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ntksap._base import CollapseError, CollapseWarning, InputError, Ranks, sha256_of
from ntksap.methods import explained, method_named, warned
from ntksap.net import Initialiser, Net, Selectors, arithmetic, left_out, resolve, unwrap, warn_of
from ntksap.pruning import Data, MakeInputs, Masks, Probe, Round, density_of, schedule_named


def prune(
    model: nn.Module,
    sparsity: float,
    method: str = "ntk-sap",
    *,
    strict: bool = False,
    on_round: Callable[[Round], object] | None = None,
    **settings: Any,
) -> Masks:
    """Choose which weights of ``model`` to keep, before training. The model is not changed: see `Masks.attach`.

    A method that also chooses the weights to start from (NTT) leaves them in ``masks.weights``: see
    `Masks.load_weights`. What a method has to say about its work is in ``masks.info``.

    Args:
        model: any ``nn.Module``.
        sparsity: the share of prunable weights to remove, 0 ≤ sparsity < 1. Exactly round((1 − sparsity) · total)
            weights are kept.
        method: a name from ``ntksap.methods.METHODS`` (``ntksap methods`` prints them).
        strict: make it an error, not a warning, when layers are left with nothing.
        on_round: called after each round, for progress or for saving.
        settings: the keywords of `prune_steps`: where inputs come from, seed, schedule, and the method's own options.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> prune(model, 0.9, "synflow", input_shape=(8,)).kept
    16
    """
    masks = None
    for state in prune_steps(model, sparsity, method, **settings):
        masks = Masks(state.masks, state.facts, state.weights)
        if on_round is not None:
            on_round(state)
    assert masks is not None  # there is at least one round
    if masks.collapsed:
        text = (
            f"nothing is left of {', '.join(masks.collapsed)}: no signal passes these layers. Lower the sparsity, use "
            "another method, or keep some weights in each layer (floor=)"
        )
        if strict:
            raise CollapseError(text)
        warnings.warn(text, CollapseWarning, stacklevel=2)
    return masks


def precision_of(
    model: nn.Module, method: str = "ntk-sap", precision: str = "auto", device: torch.device | str | None = None
) -> str:
    """Return the precision that ``precision`` means for this model and method on this device."""
    first = next(iter(unwrap(model).parameters()), torch.empty(0))
    where = first.device if device is None else torch.device(device)
    return resolve(precision, first.dtype, where, bears_bfloat16=method_named(method).bears_bfloat16)


def prune_steps(
    model: nn.Module,
    sparsity: float,
    method: str = "ntk-sap",
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    data: Data | None = None,
    seed: int = 0,
    rounds: int | None = None,
    schedule: str | None = None,
    scope: str | None = None,
    floor: int = 0,
    init: str | Initialiser = "kaiming_normal",
    output: Callable[[Any], Tensor] | None = None,
    loss: Callable[[Tensor, Any], Tensor] | None = None,
    include: Selectors = None,
    exclude: Selectors = None,
    precision: str = "auto",
    device: torch.device | str | None = None,
    micro_batch: int | None = None,
    invert: bool = False,
    after: Round | None = None,
    group: ProcessGroup | None = None,
    **options: Any,
) -> Iterator[Round]:
    """Return an iterator over the rounds of a pruning; the last one holds the final masks.

    Args:
        model, sparsity, method: as in `prune`.
        input_shape: the shape of one input without the batch, such as (3, 32, 32).
        inputs: (batch size, generator) → the module's arguments, where one tensor of numbers does not do.
        data: (inputs, labels) batches for the methods that need them (``ntksap methods`` tells): about ten samples of
            each class, or the whole training set, which is gone through once for each epoch and never held in memory.
            A function from the number of an epoch to its batches will also do.
        seed: decides every draw; the same seed gives the same masks.
        rounds, schedule: how often to score, and the density after each round; the method's own by default.
        scope: rank weights ``"global"`` or within each ``"layer"``; the method's own by default, mostly global.
        floor: weights that each layer keeps at least.
        init: where weight draws come from: ``"kaiming_normal"``, ``"reset"``, ``"shuffle"``, or a callable on a module.
        output, loss, include, exclude, device: see `Net`.
        precision: ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float64"``, see `ntksap.net.precision.PRECISIONS`.
        micro_batch: inputs that are worked on at a time; by default a whole batch, and less if memory runs out. The
            scores are the same. Not for methods that differentiate through the statistics of a batch.
        invert: keep the lowest scores in place of the highest, to test whether scores matter.
        after: a round that was yielded earlier, to go on behind it.
        group: a process group that shares the work, such as ``torch.distributed.group.WORLD``: every process of it
            makes this call with the same model and arguments, and each gets the masks that one process alone would get.
        options: the options of the method.
    """
    chosen = method_named(method)
    density = density_of(sparsity)
    pruner = chosen.pruner_with(options)
    if micro_batch is not None and not chosen.splits:
        raise InputError(f"{method} cannot work on slices of a batch without changing its scores: omit micro_batch")
    net = Net(
        model,
        output=output,
        loss=loss,
        init=init,
        include=include,
        exclude=exclude,
        device=device,
        **arithmetic(precision_of(model, method, precision, device)),
    )
    warn_of(left_out(model, include, exclude))
    ranks = Ranks(group)
    ranks.agree("weights", sha256_of(net.weights) if group else "")
    probe = Probe.of(
        net,
        seed=seed,
        input_shape=input_shape,
        inputs=inputs,
        data=data,
        stream=chosen.streams,
        micro_batch=micro_batch,
        ranks=ranks,
    )
    states = pruner(
        net,
        probe=probe,
        density=density,
        rounds=chosen.rounds if rounds is None else rounds,
        schedule=schedule_named(schedule or chosen.schedule),
        scope=scope or chosen.scope,
        floor=floor,
        invert=invert,
        after=after,
    )
    return explained(warned(states, method) if chosen.homogeneous else states, method)
