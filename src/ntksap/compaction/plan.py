"""From masks to a recipe: which units nothing depends on."""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ntksap.compaction.demand import Demands, Fold, demands
from ntksap.compaction.graph import read_graph
from ntksap.compaction.groups import groups_of, stored_axes
from ntksap.compaction.ids import Axes
from ntksap.compaction.known import evaluate
from ntksap.compaction.links import Links
from ntksap.compaction.recipe import Recipe
from ntksap.compaction.sizes import code_attributes, kept_indices, merged
from ntksap.compaction.slice import layer_attributes
from ntksap.compaction.trial import follow_code
from ntksap.net import Inputs, unwrap
from ntksap.pruning import Masks


def plan_compaction(
    model: nn.Module, masks: Mapping[str, Tensor], example_inputs: Inputs, *, inexact: Collection[str] = ()
) -> Recipe:
    """Return the recipe by which ``model`` under ``masks`` becomes smaller with the same outputs; see `compact`."""
    model = unwrap(model)
    Masks(masks).check(model)
    links = follow_code(read_graph(model, example_inputs), model, example_inputs, inexact)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        tensors = own | {name: own[name] * mask.to(own[name].device) for name, mask in masks.items()}
    values = evaluate(links.graph, tensors)
    wanted, folds = demands(links.graph, values)
    removed = _dead(links, wanted)
    kept = kept_indices(links, removed)
    attributes = merged(layer_attributes(model, kept), code_attributes(links, removed))
    folded = _folded(links, folds, removed)
    shapes = {name: tuple(own[name].shape) for name in (*kept, *folded)}
    return Recipe(kept, attributes, folded, shapes)


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
    """Return what removed constant channels add to the biases behind them."""
    added: dict[str, Tensor] = {}
    for fold in folds:
        ids = links.axes[fold.source].ids[fold.dim]
        gone = torch.from_numpy(np.isin(links.units.roots(ids), sorted(removed)))
        constant = fold.constant.double() * gone
        if constant.any():
            added[links.graph.stored[fold.bias]] = fold.weight.double() @ constant
    return added
