"""From masks to a recipe: which units nothing depends on."""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ntksap.compaction.backward import Demands, Fold
from ntksap.compaction.demand import demands
from ntksap.compaction.graph import read_graph
from ntksap.compaction.groups import groups_of, stored_axes
from ntksap.compaction.ids import Axes
from ntksap.compaction.known import evaluate
from ntksap.compaction.links import Links
from ntksap.compaction.recipe import Recipe
from ntksap.compaction.sizes import code_attributes, kept_indices, merged
from ntksap.compaction.slice import layer_attributes
from ntksap.compaction.trial import follow_code
from ntksap.compaction.values import Known, certain
from ntksap.net import Inputs, unwrap
from ntksap.pruning import Masks


def plan_compaction(
    model: nn.Module, masks: Mapping[str, Tensor], example_inputs: Inputs, *, inexact: Collection[str] = ()
) -> Recipe:
    """Return the recipe by which ``model`` under ``masks`` becomes smaller with the same outputs; see `compact`."""
    model = unwrap(model)
    Masks(masks).check(model)
    links = follow_code(read_graph(model, example_inputs), model, example_inputs, inexact)
    removed, folds = _removable(links, model, masks, inexact)
    kept = kept_indices(links, removed)
    attributes = merged(code_attributes(links, removed), layer_attributes(model, kept))
    folded = _folded(links, folds, removed)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    shapes = {name: tuple(own[name].shape) for name in (*kept, *folded)}
    return Recipe(kept, attributes, folded, shapes)


def _removable(
    links: Links, model: nn.Module, masks: Mapping[str, Tensor], inexact: Collection[str]
) -> tuple[set[int], list[Fold]]:
    """Return the units that can go, and the constants that they leave to biases.

    At first all are assumed to go. Those that an output depends on stay, and their weights are then no longer
    constants, which others may have relied on; so this is repeated until nothing changes.
    """
    removed = set(_roots(links))
    while True:
        values = evaluate(links.graph, _stored(links, model, masks, removed))
        wanted, folds = demands(links.graph, values, inexact)
        dead = removed & _dead(links, wanted)
        if dead == removed:
            return removed, folds
        removed = dead


def _roots(links: Links) -> list[int]:
    found = [links.units.roots(ids[links.units.free(ids)]) for ids in stored_axes(links).values() if ids.any()]
    return np.unique(np.concatenate(found)).tolist() if found else []


def _stored(links: Links, model: nn.Module, masks: Mapping[str, Tensor], removed: Collection[int]) -> dict[str, Known]:
    """Return what is known about parameters and buffers: pruned weights are and stay 0; what goes keeps its value."""
    result = {name: certain(_masked(buffer.detach(), masks.get(name))) for name, buffer in model.named_buffers()}
    axes, marked = stored_axes(links), links.units.marks(removed)
    for name, parameter in model.named_parameters():
        value = parameter.detach().cpu()
        trained = torch.full((), parameter.requires_grad, device="cpu").expand(value.shape)
        if name in masks:
            mask = masks[name].cpu()
            value, trained = value * mask, trained & mask
        stays = torch.ones((), dtype=torch.bool, device="cpu").expand(value.shape)
        for dim in range(value.dim()):
            if (name, dim) in axes:
                gone = marked[links.units.roots(axes[name, dim])]
                column = [1] * value.dim()
                column[dim] = -1
                stays = stays & torch.from_numpy(~gone).view(column)
        result[name] = Known(value, trained & stays, trained)
    return result


def _masked(tensor: Tensor, mask: Tensor | None) -> Tensor:
    return tensor if mask is None else tensor * mask.to(tensor.device)


def _dead(links: Links, wanted: Demands) -> set[int]:
    """Return the units that no output depends on; one unit of each group stays, dead or not."""
    alive: set[int] = set()
    for node, demand in wanted.items():
        axes = links.axes[node]
        if not isinstance(axes, Axes):
            continue
        for dim, ids in enumerate(axes.ids):
            if ids.any():
                used = demand.movedim(dim, 0).reshape(len(ids), -1).any(1).numpy()
                alive.update(links.units.roots(ids[used]).tolist())
    dead: set[int] = set()
    axes_of = stored_axes(links)
    for group in groups_of(links).groups:
        member = group.members[0]
        first = [int(np.flatnonzero(member.units == unit)[0]) for unit in range(group.size)]
        roots = links.units.roots(axes_of[member.name, member.dim][first]).tolist()
        gone = [root for root in roots if root not in alive]
        dead.update(gone[1:] if len(gone) == group.size else gone)
    return dead


def _folded(links: Links, folds: list[Fold], removed: Collection[int]) -> dict[str, Tensor]:
    """Return what removed constant channels add to the biases of the layers that follow."""
    added: dict[str, Tensor] = {}
    marked = links.units.marks(removed)
    for fold in folds:
        ids = links.axes[fold.source].ids[fold.dim]
        gone = torch.from_numpy(marked[links.units.roots(ids)])
        constant = fold.constant.double() * gone
        if constant.any():
            added[links.graph.stored[fold.bias]] = fold.weight.double() @ constant
    return added
