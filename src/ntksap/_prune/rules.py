"""From a rule to an allocation: how many weights each layer of a module keeps."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from ntksap._base import InputError, unknown
from ntksap.methods import METHODS, layer_densities
from ntksap.net import (
    Initialiser,
    Net,
    Selectors,
    apart,
    kaiming_normal,
    logit_layers,
    parts_of,
    prunable_names,
    shell,
    unwrap,
    weight_views,
)
from ntksap.pruning import (
    RULES,
    Allocation,
    Floor,
    MakeInputs,
    Masks,
    Probe,
    Shapes,
    allocation_of,
    classifier_of,
    density_of,
    erk_logits,
    floor_of,
    kept_of,
    named_counts,
    schedule_named,
    shared,
)

Rule: TypeAlias = str | Mapping[str, float] | Masks | Allocation
"""A name (see `ALLOCATIONS`), a user's mapping, or masks or an allocation whose counts are taken."""

ALLOCATIONS: dict[str, str] = {
    "uniform": "the same density everywhere",
    "equal": "the same number everywhere, at most a layer's size",
    "erk": "Erdős–Rényi kernel: density ∝ Σ dims / Π dims of the weight",
    "erk+": "erk with the classifier dense",
    "erk-logits": "erk, with the square root of the density in layers that make logits: queries, keys, the classifier",
    "ntk-sap": "NTK-SAP in closed form, one number per layer",
}
"""The rules by name; apart from these, the name of any method stands for the counts of its masks."""


def shapes_of(model: nn.Module, include: Selectors = None, exclude: Selectors = None) -> Shapes:
    """Return the shape of each prunable weight."""
    parameters = dict(unwrap(model).named_parameters())
    return {name: tuple(parameters[name].shape) for name in prunable_names(unwrap(model), include, exclude)}


def is_method(rule: Rule) -> TypeGuard[str]:
    """Whether a rule stands for the counts of a method's masks."""
    return isinstance(rule, str) and rule in METHODS and rule not in ALLOCATIONS


def allocation_for(
    model: nn.Module,
    sparsity: float | None,
    rule: Rule,
    *,
    floor: Floor = 1,
    block_floor: Floor = 0,
    blocks: Sequence[str] | None = None,
    rest: str = "uniform",
    rescale: bool = False,
    rounds: int | None = None,
    schedule: str | None = None,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
    init: str | Initialiser = "kaiming_normal",
    include: Selectors = None,
    exclude: Selectors = None,
) -> Allocation:
    """Do what `ntksap.allocate` does, for every rule that is not a method."""
    shapes = shapes_of(model, include, exclude)
    views = weight_views(shapes, unwrap(model))
    layers = {name: view.shape for name, view in apart(views).items()}  # each expert is one
    density = None if sparsity is None else density_of(sparsity)
    bounds: dict[str, Any] = {"floor": floor, "block_floor": block_floor, "blocks": blocks}
    if isinstance(rule, Masks | Allocation):
        return _counted(rule, shapes, density, bounds)
    fixed: dict[str, int] = {}
    info: dict[str, Any] = {"rule": rule if isinstance(rule, str) else "given"}
    if isinstance(rule, Mapping):
        given: Mapping[str, float] = rule  # type: ignore[assignment]
        fixed = shared(named_counts(shapes, given), views)
        if rest not in RULES:
            raise unknown("rule for the other layers", rest, RULES)
        quotas = RULES[rest](layers)
    elif rule not in ALLOCATIONS:
        raise unknown("allocation", rule, [*ALLOCATIONS, *(name for name in METHODS if name not in ALLOCATIONS)])
    elif density is None:
        raise InputError(f"allocation {rule!r} needs a sparsity")
    elif rule == "ntk-sap":
        known = init in ("kaiming_normal", kaiming_normal)  # then no weight need be drawn, or held
        least = {name: floor_of(floor, math.prod(shape)) / max(1, math.prod(shape)) for name, shape in layers.items()}
        least = {name: least[parts_of(name, view)[0]] for name, view in views.items()}
        rounds, schedule = rounds or 20, schedule or "exponential"
        falls = schedule_named(schedule)
        with torch.inference_mode(False), torch.enable_grad():
            bare = shell(model, shapes if known else ())
            net = Net(bare, output=output, init=init, include=include, exclude=exclude, device=_device(model))
            probe = Probe.of(net, input_shape=input_shape, inputs=inputs)
            found = layer_densities(net, probe, density, rounds=rounds, schedule=falls, least=least, rescale=rescale)
        info |= {"rescale": rescale, "rounds": rounds, "schedule": schedule}
        quotas = {part: found[n] * math.prod(layers[part]) for n, view in views.items() for part in parts_of(n, view)}
    elif rule == "erk-logits":
        shape = None if input_shape is None else tuple(input_shape)
        ones = Probe(input_shape=shape, make_inputs=inputs).ones(next(iter(unwrap(model).parameters())).dtype)
        names = logit_layers(model, ones, output) & set(views)
        quotas = erk_logits(layers, density, {part for name in names for part in parts_of(name, views[name])})
    elif rule == "erk+":
        name = classifier_of(shapes)
        if math.prod(shapes[name]) >= kept_of(density, sum(math.prod(shape) for shape in shapes.values())):
            raise InputError(f"erk+ keeps {name!r} dense, which alone has more weights than are to be kept: use erk")
        fixed = {name: math.prod(shapes[name])}
        quotas = RULES["erk"](layers)
    else:
        quotas = RULES[rule](layers)
    plan = allocation_of(layers, density, quotas, fixed=fixed, info=info, **bounds)
    return Allocation({n: sum(plan[part] for part in parts_of(n, view)) for n, view in views.items()}, shapes, info)


def _counted(given: Masks | Allocation, shapes: Shapes, density: float | None, bounds: Mapping[str, Any]) -> Allocation:
    """Return the counts of masks or of an allocation as they are, or in proportion if another density is asked for."""
    have = {n: tuple(m.shape) for n, m in given.prunable.items()} if isinstance(given, Masks) else given.shapes
    if have != dict(shapes):
        names = sorted(set(have.items()) ^ set(shapes.items()))
        raise InputError(f"the counts are for another model, or for other prunable layers: {names[0][0]!r} differs")
    counts = {n: int(m.sum()) for n, m in given.prunable.items()} if isinstance(given, Masks) else dict(given)
    rule = given.info.get("method", "masks") if isinstance(given, Masks) else given.info.get("rule", "given")
    if density is None or kept_of(density, given.total) == sum(counts.values()):
        return Allocation(counts, shapes, {"rule": rule})
    quotas = {name: float(count) for name, count in counts.items()}
    return allocation_of(shapes, density, quotas, info={"rule": rule}, **bounds)


def _device(model: nn.Module) -> torch.device:
    first = next(iter(unwrap(model).parameters()))
    return torch.device("cpu") if first.is_meta else first.device
