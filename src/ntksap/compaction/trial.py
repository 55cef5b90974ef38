"""Whether the module's own code follows smaller sizes: no graph shows that, so it is tried.

A view such as ``x.view(n, self.num_heads, -1)`` follows once ``num_heads`` is set to the number that is left; one such
as ``x.view(n, 8, 64)`` cannot. Where code names sizes, one unit of every group is removed from a copy with random
weights, and the copy must compute what the whole module computes with zeros in their place. Classes whose code does not
follow are frozen.
"""

import copy
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ntksap.compaction.graph import Graph, evaluating
from ntksap.compaction.links import Links, link
from ntksap.compaction.sizes import code_attributes, kept_indices, merged
from ntksap.compaction.slice import cut, layer_attributes
from ntksap.net import Inputs, arguments

_TOLERANCE = 1e-3


def follow_code(graph: Graph, module: nn.Module, example_inputs: Inputs, inexact: Collection[str] = ()) -> Links:
    """Return the ids of ``graph``, with what the module's code cannot follow frozen."""
    links = link(graph, module, inexact=inexact)
    classes = {type(place.owner).__qualname__ for place in links.sized}
    if not classes or _follows(links, module, example_inputs, exact=not inexact):
        return links
    able = set()
    for name in sorted(classes):
        alone = link(graph, module, inexact=inexact, rigid=classes - {name})
        if _follows(alone, module, example_inputs, exact=not inexact):
            able.add(name)
    links = link(graph, module, inexact=inexact, rigid=classes - able)
    if able and not _follows(links, module, example_inputs, exact=not inexact):
        links = link(graph, module, inexact=inexact, rigid=classes)
    return links


@torch.no_grad()
def _follows(links: Links, module: nn.Module, example_inputs: Inputs, exact: bool) -> bool:
    """Return whether the module without one unit of each group runs, and computes what it should."""
    removed = _one_of_each(links)
    kept = kept_indices(links, removed)
    whole = _randomised(module)
    own = dict(whole.named_parameters()) | dict(whole.named_buffers())
    for name, less in kept.items():
        for dim, indices in less.items():
            gone = torch.ones(own[name].shape[dim], dtype=torch.bool, device="cpu").index_fill_(0, indices, False)
            if not name.endswith("running_var"):
                own[name].index_fill_(dim, gone.nonzero().flatten().to(own[name].device), 0)
    small = cut(whole, kept, merged(code_attributes(links, removed), layer_attributes(module, kept)), {})
    expected = _outputs(whole, example_inputs)
    try:
        found = _outputs(small, example_inputs)
    except Exception:  # whatever the module's code raises at a size that it did not expect
        return False
    same_shapes = [x.shape for x in expected] == [x.shape for x in found]
    return same_shapes and (not exact or all(_close(x, y) for x, y in zip(expected, found, strict=True)))


def _one_of_each(links: Links) -> set[int]:
    """Return the last unit of each set of units that lie on the same axis of a tensor, if others are left."""
    removed: set[int] = set()
    for node in links.graph.stored:
        for ids in links.axes[node].ids if node in links.axes else ():
            roots = links.units.roots(ids)
            free = np.unique(roots[links.units.free(ids)])
            if len(np.unique(roots)) > 1 and len(free) and not removed.intersection(free.tolist()):
                removed.add(int(free[-1]))
    return removed


def _randomised(module: nn.Module) -> nn.Module:
    """Return a copy with random parameters of moderate size, in evaluation mode, so that no zero hides a mistake."""
    generator = torch.Generator().manual_seed(0)
    twin = cut(module, {}, {}, {})
    for parameter in twin.parameters():
        parameter.requires_grad_(False)
        drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
        drawn = drawn / math.sqrt(max(1, parameter[0].numel())) if parameter.dim() > 1 else 1 + 0.3 * drawn
        parameter.copy_(drawn)
    return twin


def _outputs(module: nn.Module, example_inputs: Inputs) -> list[Tensor]:
    args, kwargs = copy.deepcopy(arguments(example_inputs))
    with evaluating(module):
        result: Any = module(*args, **kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def _close(expected: Tensor, found: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(expected, found)
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return math.isfinite(scale) and bool(torch.allclose(expected, found, rtol=_TOLERANCE, atol=_TOLERANCE * scale))
