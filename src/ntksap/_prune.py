"""`prune`: from a module and a sparsity to masks, in one call."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ntksap._base import CollapseError, CollapseWarning, InputError, Ranks, sha256_of, unknown, usable_device
from ntksap.methods import Method, method_named, warn_of_bends
from ntksap.net import Initialiser, Net, Selectors, arithmetic, resolve, unwrap
from ntksap.pruning import (
    Data,
    MakeInputs,
    Masks,
    Probe,
    check_data,
    check_inputs,
    check_module,
    checked_shape,
    checked_whole,
    density_of,
    explained,
    schedule_named,
)


def prune(
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
    strict: bool = False,
    on_round: Callable[[Masks], object] | None = None,
    after: Masks | None = None,
    group: ProcessGroup | None = None,
    **options: Any,
) -> Masks:
    """Choose which weights of ``model`` to keep, before training. The model is not changed: see `Masks.attach`.

    The masks are the whole record: ``masks.info`` says how they came about and what the method has to say about its
    work; a method that also chooses the weights to start from (NTT) leaves them in ``masks.weights``, see
    `Masks.load_weights`.

    Args:
        model: any ``nn.Module``.
        sparsity: the share of prunable weights to remove, 0 ≤ sparsity < 1. Exactly round((1 − sparsity) · total)
            weights are kept.
        method: a name from ``ntksap.methods.METHODS`` (``ntksap methods`` prints them).
        input_shape: the shape of one input without the batch, such as (3, 32, 32).
        inputs: (batch size, generator) → the module's arguments, where one tensor of numbers does not do.
        data: (inputs, labels) batches for the methods that need them (``ntksap methods`` tells): about ten samples of
            each class, or the whole training set, which is gone through once for each epoch and never held in memory.
            A function from the number of an epoch to its batches will also do.
        seed: decides every draw; the same seed gives the same masks.
        rounds: how often to score and remove; the method's own by default.
        schedule: the density after each round, ``"exponential"``, ``"linear"`` or ``"one-shot"``; the method's own by
            default.
        scope: rank weights ``"global"`` or within each ``"layer"``; the method's own by default, mostly global.
        floor: weights that each layer keeps at least.
        init: where weight draws come from: ``"kaiming_normal"``, ``"reset"``, ``"shuffle"``, or a callable on a module.
        output: turns what the module returns into one tensor, see `Net`.
        loss: (output, labels) → summed loss, see `Net`.
        include, exclude: what is prunable, by name, type or callable, see `Net`.
        precision: ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float64"``, see `ntksap.net.precision.PRECISIONS`.
        device: where to compute; where the module is by default.
        micro_batch: inputs that are worked on at a time; by default a whole batch, and less if memory runs out. The
            scores are the same. Not for methods that differentiate through the statistics of a batch.
        invert: keep the lowest scores in place of the highest, to test whether scores matter.
        strict: make it an error, not a warning, when layers are left with nothing.
        on_round: called with the masks after each round (``masks.info["round"]``), for progress or for saving.
        after: masks that ``on_round`` was given earlier, to resume after that round.
        group: a process group that shares the work, such as ``torch.distributed.group.WORLD``: every process of it
            makes this call with the same model and arguments, and each gets the masks that one process alone would get.
        options: the options of the method.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> prune(model, 0.9, "synflow", input_shape=(8,)).kept
    16
    """
    check_module(model)
    check_inputs(inputs)
    check_data(data)
    input_shape = checked_shape(input_shape)
    seed, floor = checked_whole("seed", seed), checked_whole("floor", floor, least=0)
    rounds = None if rounds is None else checked_whole("rounds", rounds, least=1)
    device = None if device is None else usable_device(device)
    chosen = method_named(method)
    density = density_of(sparsity)
    _check_options(chosen, options)
    if micro_batch is not None and not chosen.splits:
        raise InputError(f"{method} cannot work on slices of a batch without changing its scores: omit micro_batch")
    resolved = precision_of(model, precision)
    with torch.inference_mode(False), torch.enable_grad():
        net = Net(
            model,
            output=output,
            loss=loss,
            init=init,
            include=include,
            exclude=exclude,
            device=device,
            **arithmetic(resolved),
        )
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
    states = chosen.pruner_with(options)(
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
    states = explained(warn_of_bends(states, method) if chosen.homogeneous else states, net, probe)
    about = {"method": method, "sparsity": float(sparsity), "seed": seed, "precision": resolved}
    masks = after  # where that was the last round already
    for masks in states:
        masks.info |= about
        if on_round is not None:
            on_round(masks)
    assert masks is not None  # there is at least one round
    warn_of_collapse(masks, strict=strict)
    return masks


def precision_of(model: nn.Module, precision: str = "auto") -> str:
    """Return the precision that ``precision`` means for this model."""
    check_module(model)
    return resolve(precision, next(iter(unwrap(model).parameters()), torch.empty(0)).dtype)


def warn_of_collapse(masks: Masks, *, strict: bool = False) -> None:
    """Warn of layers with nothing left; `CollapseError` if ``strict``."""
    if not masks.collapsed:
        return
    text = (
        f"nothing is left of {', '.join(masks.collapsed)}: no signal passes these layers. Lower the sparsity, use "
        "another method, or keep some weights in each layer (floor=)"
    )
    if strict:
        raise CollapseError(text)
    warnings.warn(text, CollapseWarning, stacklevel=3)


def _check_options(method: Method, options: dict[str, Any]) -> None:
    """Raise for a keyword that neither `prune` nor the method has, with the nearest one that they do have."""
    keywords = inspect.signature(prune).parameters.keys() - {"options"}
    for name in options:
        if name not in method.options:
            raise unknown(f"keyword of prune with method {method.name!r}", name, [*keywords, *method.options])
