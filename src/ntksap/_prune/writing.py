"""`write_masks`: from an allocation to a file of masks, one layer after another."""

from pathlib import Path

from torch import nn

from ntksap._base import InputError, unknown
from ntksap.net import unwrap, weight_views
from ntksap.pruning import (
    Allocation,
    Channel,
    Selector,
    checked_whole,
    pattern_named,
    rescale_named,
    schedule_named,
    write_mask_file,
)

_PLACES = ("random", "balanced")


def write_masks(
    path: str | Path,
    model: nn.Module,
    allocation: Allocation,
    *,
    places: str = "random",
    pattern: str | None = None,
    seed: int = 0,
    rescale: bool | str = False,
) -> None:
    """Write masks that need no scores, one layer after another: memory never holds more than one layer's mask.

    The bits are those of ``prune(model, sparsity, "random", allocation=allocation, places=places)``, and `Masks.load`
    reads the file. The model may be on the meta device.

    Args:
        path: the file to write, with one bit for each weight.
        model: any ``nn.Module``; its weights are not looked at.
        allocation: what `allocate` returned for it.
        places: ``"random"`` or ``"balanced"``, see `prune`.
        pattern, seed, rescale: as in `prune`.

    >>> import tempfile
    >>> import ntksap
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> plan = ntksap.allocate(model, 0.75, "erk")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_masks(f"{folder}/masks", model, plan)
    ...     masks = ntksap.Masks.load(f"{folder}/masks")
    >>> masks == ntksap.prune(model, 0.75, "random", allocation=plan, places="random")
    True
    """
    seed = checked_whole("seed", seed)
    how = rescale_named(rescale)
    if places not in _PLACES:
        raise unknown("places", places, _PLACES)
    chosen = None if pattern is None else pattern_named(pattern)
    if isinstance(chosen, Channel):
        raise InputError("the channels of a network are chosen together, across all of its layers: use prune")
    parameters = dict(unwrap(model).named_parameters())
    if any(n not in parameters or parameters[n].shape != shape for n, shape in allocation.shapes.items()):
        raise InputError("the allocation is for another model: call allocate() for this one")
    selector = Selector(
        allocation.density,
        1,
        schedule_named("one-shot"),
        weight_views(allocation.shapes, unwrap(model)),
        allocation=allocation,
        pattern=chosen,
    )
    info = {"round": 1, "rounds": 1, "method": "random", "sparsity": allocation.sparsity, "seed": seed}
    info |= {**selector.facts(), "places": places, **({} if how == "none" else {"rescale": how})}
    write_mask_file(path, allocation.shapes, lambda name: selector.place(name, places, seed), info)
