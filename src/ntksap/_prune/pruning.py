"""`prune`: from a module and a sparsity to masks, in one call."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ntksap._base import CollapseWarning, InputError, Ranks, sha256_of, usable_device
from ntksap._prune.combinations import check_combination, check_options, own_rules
from ntksap._prune.rules import Rule, allocation_for, is_method
from ntksap._prune.selector import selector_for
from ntksap.methods import default_method, explain_failures, method_named, warn_of_bends
from ntksap.net import Initialiser, Net, Selectors, arithmetic, left_out, resolve, unwrap, warn_of
from ntksap.pruning import (
    Allocation,
    Data,
    Floor,
    MakeInputs,
    Masks,
    Probe,
    Train,
    allocation_of,
    check_data,
    check_inputs,
    check_module,
    checked_shape,
    checked_whole,
    density_of,
    explain_input_failures,
    explained,
    floor_of,
    rescale_named,
    trainer_of,
    warn_of_collapse,
)


def prune(
    model: nn.Module,
    sparsity: float,
    method: str | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    data: Data | None = None,
    train: Train | None = None,
    seed: int = 0,
    rounds: int | None = None,
    schedule: str | None = None,
    scope: str | None = None,
    floor: Floor = 0,
    allocation: Rule | None = None,
    places: str | None = None,
    pattern: str | None = None,
    budget: str = "weights",
    round_to: int = 1,
    degree_decay: float = 0.0,
    rescale: bool | str = False,
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

    The masks are the whole record: ``masks.info`` says how they came about and what the method reports; a method that
    also chooses the weights to start from (NTT) leaves them in ``masks.weights``, see `Masks.load_weights`.

    Args:
        model: any ``nn.Module``.
        sparsity: the share of prunable weights to remove, 0 ≤ sparsity < 1. Exactly round((1 − sparsity) · total)
            weights are kept.
        method: a name from ``ntksap.methods.METHODS`` (``ntksap methods`` prints them). By default
            ``"random-erk-logits"`` for a module with attention, else ``"ntk-sap-analytic"``, or ``"ntk-sap"`` for a
            module that the closed form cannot follow; ``masks.info["method"]`` says which.
        input_shape: the shape of one input without the batch, such as (3, 32, 32).
        inputs: (batch size, generator) → the module's arguments, where one tensor of numbers is not enough.
        data: (inputs, labels) batches for the methods that need them (``ntksap methods`` says which): about ten samples
            of each class, or the whole training set, which is read once for each epoch and never held in memory.
            A function from the number of an epoch to its batches will also do.
        train: a generator function of (module, masks) that trains the module, to which the masks are attached, and
            yields after each epoch; for methods that train (``imp``).
        seed: decides every draw; the same seed gives the same masks.
        rounds: how often to score and remove; the method's own by default.
        schedule: the density after each round, ``"exponential"``, ``"linear"`` or ``"one-shot"``; the method's own by
            default.
        scope: rank weights ``"global"`` or within each ``"layer"``; the method's own by default, mostly global.
        floor: the least that each layer keeps, as a number of weights or, below 1, as a share; at least 1 in an
            allocation that is made here.
        allocation: how many weights each layer keeps: what `allocate` returned, or a rule for it. The method then
            decides within each layer. By default the method's own allocation or scope decides; a scope that is passed
            replaces its allocation.
        places: which weights of a layer are kept, once their number is known: by the method's ``"score"``, at
            ``"random"``, or ``"balanced"``: every output, input and position of a kernel keeps the same number. With an
            allocation, the last two compute no scores. The method's own by default: by score, but ``"balanced"`` for
            ``"ntk-sap-analytic"`` unless a scope, a pattern, ``invert`` or ``degree_decay`` needs its scores.
        pattern: ``"N:M"`` (at most N of M consecutive inputs), ``"transposable-2:4"``, ``"block:RxC"`` or ``"fan-in"``
            (the same number in every output). The number of weights is the nearest that it allows. Or ``"channel"``:
            whole channels of the network go, in every layer that writes or reads them, with their biases and norms,
            so that `ntksap.compact` makes a smaller module; the graph is read with ``input_shape`` or ``inputs``. In
            each round a channel's score is the sum over all its weights, and the lowest of each coupled group go: the
            same share of all groups, or, with the scope ``"global"``, the lowest of all; at least one of each stays.
            ``masks.obeys(pattern)`` checks.
        budget: what the sparsity of ``"channel"`` is a share of: ``"weights"`` or ``"multiply-adds"``. What is left is
            at most that, and barely less.
        round_to: with ``"channel"``, each group of coupled channels keeps a multiple of this many, or all.
        degree_decay: c; each score is multiplied by (kept weights that leave its input · those that enter its
            output)^(−c·log₁₀(1/density)) in each round, which keeps more units alive; WideTopo uses 0.2.
        rescale: the masks are made to be attached with rescaling; `Masks.attach` then rescales without being asked.
        init: where weight draws come from: ``"kaiming_normal"``, ``"reset"``, ``"shuffle"``, or a callable on a module.
        output: turns what the module returns into one tensor, see `Net`.
        loss: (output, labels) → summed loss, see `Net`.
        include, exclude: what is prunable, by name, type or callable, see `Net`.
        precision: ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float64"``, see `ntksap.net.precision.PRECISIONS`.
        device: where to compute; where the module is by default.
        micro_batch: inputs that are processed at a time; by default a whole batch, and less if memory runs out. The
            scores are the same. Not for methods that differentiate through the statistics of a batch.
        invert: keep the lowest scores instead of the highest, to test whether scores matter.
        strict: make it an error, not a warning, when layers are left with nothing.
        on_round: called with the masks after each round (``masks.info["round"]``), for progress or for saving.
        after: masks that ``on_round`` was given earlier, to resume after that round.
        group: a process group that shares the work, such as ``torch.distributed.group.WORLD``: every process in it
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
    seed = checked_whole("seed", seed)
    floor_of(floor, 1)  # raises
    rounds = None if rounds is None else checked_whole("rounds", rounds, least=1)
    device = None if device is None else usable_device(device)
    if method is None:
        method = default_method(
            model,
            input_shape=input_shape,
            inputs=inputs,
            output=output,
            init=init,
            scope=scope,
            pattern=pattern,
            options=[*options, *(["micro_batch"] if micro_batch is not None else [])],
        )
    chosen = method_named(method)
    density = density_of(sparsity)
    check_options(chosen, options, inspect.signature(prune).parameters.keys() - {"options"})
    options = chosen.checked(options)
    if train is not None and not chosen.trains:
        raise InputError(f"{method} does not train the network: omit train")
    how = rescale_named(rescale)
    places, allocation = own_rules(chosen, scope, places, allocation, pattern, invert, degree_decay)
    check_combination(
        chosen, scope, places, allocation, pattern, how, invert, floor, budget, round_to, degree_decay, rounds, schedule
    )
    if micro_batch is not None and not chosen.splits:
        raise InputError(f"{method} cannot work on slices of a batch without changing its scores: omit micro_batch")
    resolved = resolve(precision, next(iter(unwrap(model).parameters()), torch.empty(0, device="cpu")).dtype)
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
    warn_of(left_out(model, include, exclude))
    ranks = Ranks(group)
    ranks.agree("weights", sha256_of(net.weights) if group else "")
    if allocation is not None and not isinstance(allocation, Allocation):
        same: dict[str, Any] = {"input_shape": input_shape, "inputs": inputs, "output": output, "init": init}
        same |= {"include": include, "exclude": exclude, "floor": floor or 1}
        with explained(net, Probe.of(net, input_shape=input_shape, inputs=inputs)):
            if is_method(allocation):
                same |= {"data": data, "seed": seed, "loss": loss, "group": group}
                allocation = allocation_by_method(model, sparsity, allocation, **same)
            else:
                if allocation == chosen.allocation:
                    same |= {"rounds": rounds, "schedule": schedule}
                allocation = allocation_for(model, sparsity, allocation, rescale=how != "none", **same)
    selector = selector_for(
        model,
        net,
        chosen,
        density,
        rounds=rounds,
        schedule=schedule,
        scope=scope,
        floor=floor,
        allocation=allocation,
        pattern=pattern,
        budget=budget,
        round_to=round_to,
        degree_decay=degree_decay,
        input_shape=input_shape,
        inputs=inputs,
    )
    if allocation is not None and places != "score":  # nothing is left for scores to decide
        states = iter([Masks(selector.placed(places, seed), {"round": 1, "rounds": 1})])
    else:
        probe = Probe.of(
            net,
            seed=seed,
            input_shape=input_shape,
            inputs=inputs,
            data=data,
            stream=chosen.streams,
            micro_batch=micro_batch,
            ranks=ranks,
            trainer=None if train is None else trainer_of(model, train, seed),
        )
        states = chosen.pruner_with(options)(net, probe=probe, selector=selector, invert=invert, after=after)
        states = explain_failures(warn_of_bends(states, method) if chosen.homogeneous else states, method)
        states = explain_input_failures(states, net, probe)
    about = {"method": method, "sparsity": float(sparsity), "seed": seed, "precision": resolved, **selector.facts()}
    about |= {**({} if places == "score" else {"places": places}), **({} if how == "none" else {"rescale": how})}
    if scope is not None and (chosen.allocation or scope != chosen.scope):
        about["scope"] = scope
    masks = after  # if that was already the last round
    for masks in states:
        if masks.info["round"] == masks.info["rounds"]:
            if allocation is None and places != "score":
                masks = Masks(selector.placed(places, seed, masks), masks.info)
            masks = selector.completed(masks)
        masks.info |= about
        if on_round is not None:
            on_round(masks)
    assert masks is not None  # there is at least one round
    warn_of_collapse(masks, strict=strict)
    return masks


def allocation_by_method(
    model: nn.Module,
    sparsity: float,
    method: str,
    *,
    floor: Floor = 1,
    block_floor: Floor = 0,
    blocks: Sequence[str] | None = None,
    **settings: Any,
) -> Allocation:
    """Return how many weights each layer keeps in the masks of a method, or the least if that is more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)  # the floor takes care of that
        masks = prune(model, sparsity, method, **settings)
    counted = {name: int(mask.sum()) for name, mask in masks.prunable.items()}
    shapes = {name: tuple(mask.shape) for name, mask in masks.prunable.items()}
    bounds: dict[str, Any] = {"floor": floor, "block_floor": block_floor, "blocks": blocks}
    return allocation_of(shapes, density_of(sparsity), counted, info={"rule": method}, **bounds)
