"""From the settings of `ntksap.prune` to what selects weights, or whole channels, after each round."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ntksap._base import InputError
from ntksap.compaction import channel_selector
from ntksap.methods import Method
from ntksap.net import Net, unwrap, weight_views
from ntksap.pruning import (
    CHANNEL,
    Allocation,
    Floor,
    MakeInputs,
    Selector,
    kept_of,
    one_input,
    pattern_named,
    schedule_named,
)


def selector_for(
    model: nn.Module,
    net: Net,
    chosen: Method,
    density: float,
    *,
    rounds: int | None,
    schedule: str | None,
    scope: str | None,
    floor: Floor,
    allocation: Allocation | None,
    pattern: str | None,
    budget: str,
    round_to: int,
    degree_decay: float,
    input_shape: Sequence[int] | None,
    inputs: MakeInputs | None,
) -> Selector:
    """Return the selector of a module; what is None is as the method has it."""
    shapes = {name: tuple(net.weights[name].shape) for name in net.prunable}
    when: dict[str, Any] = {
        "density": density,
        "rounds": chosen.rounds_at(density) if rounds is None else rounds,
        "schedule": schedule_named(schedule or chosen.schedule),
    }
    if pattern == CHANNEL:
        if input_shape is None and inputs is None:
            raise InputError(
                "pattern='channel' reads the module's graph: pass input_shape=, such as (3, 32, 32), or inputs="
            )
        one = one_input(model, input_shape, inputs)
        return channel_selector(model, shapes, one, **when, scope=scope or "layer", budget=budget, round_to=round_to)
    if allocation is not None:
        _check_fits(allocation, shapes, density)
    return Selector(
        **when,
        views=weight_views(shapes, unwrap(model)),
        scope=scope or chosen.scope,
        floor=floor,
        allocation=allocation,
        pattern=None if pattern is None else pattern_named(pattern),  # type: ignore[arg-type]  # not of channels
        degree_decay=degree_decay,
    )


def _check_fits(allocation: Allocation, shapes: dict[str, tuple[int, ...]], density: float) -> None:
    """Raise unless the allocation is for these weights and this density."""
    if allocation.shapes != shapes:
        raise InputError("the allocation is for another model or other prunable layers: call allocate() for this one")
    if allocation.kept != (kept := kept_of(density, allocation.total)):
        raise InputError(
            f"the allocation keeps {allocation.kept} weights, a sparsity of {1 - density:g} keeps {kept}: pass "
            f"sparsity={allocation.sparsity:.6g}, or allocate() for the sparsity you want"
        )
