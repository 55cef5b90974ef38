"""What must hold of a compact module: the masked one, without its zeros."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ntksap.compaction import ChannelGroups, Recipe
from ntksap.compaction.slice import sliced
from ntksap.net import Net, arguments
from ntksap.pruning import Masks


def in_float64(value: Any) -> Any:
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, value)


def randomised(model: nn.Module, seed: int) -> nn.Module:
    """The model in float64 with no parameter or statistic at a value that could hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point() or (isinstance(tensor, nn.Parameter) is False and "running" not in name):
                continue
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if "running_var" in name:
                tensor.copy_(drawn.abs() + 0.5)
            elif tensor.dim() > 1:
                tensor.copy_(drawn * (2 / tensor[0].numel()) ** 0.5)
            else:
                tensor.copy_(0.5 * drawn + (1 if name.endswith("weight") else 0))
    return model


def random_units(groups: ChannelGroups, seed: int) -> list[Tensor]:
    """About half of each group, at least one kept and one removed."""
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for group in groups.groups:
        order = torch.randperm(group.size, generator=generator)
        count = 1 + int(torch.randint(max(1, group.size - 1), (1,), generator=generator))
        kept.append(torch.zeros(group.size, dtype=torch.bool).index_fill_(0, order[:count], True))
    return kept


def random_masks(model: nn.Module, density: float, seed: int) -> Masks:
    """Single weights at random, and some biases, so that channels die of their own."""
    generator = torch.Generator().manual_seed(seed)
    names = set(Net(model).prunable)
    drawn = {}
    for name, parameter in model.named_parameters():
        if name in names or parameter.dim() == 1:
            share = density if name in names else 0.5
            drawn[name] = torch.rand(parameter.shape, generator=generator) < share
    return Masks(drawn)


def masked(model: nn.Module, masks: Masks) -> nn.Module:
    twin = copy.deepcopy(model)
    with torch.no_grad():
        own = dict(twin.named_parameters()) | dict(twin.named_buffers())
        for name, mask in masks.items():
            own[name].mul_(mask)
    return twin


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    args, kwargs = arguments(inputs)
    return [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]


def gradients(model: nn.Module, found: list[Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(out.shape, generator=generator, dtype=out.dtype) for out in found]
    total = sum((out * weight).sum() for out, weight in zip(found, weights, strict=True))
    named = dict(model.named_parameters())
    derivatives = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if d is None else d for (name, p), d in zip(named.items(), derivatives, strict=True)
    }


def assert_same(
    whole: nn.Module, small: nn.Module, recipe: Recipe, masks: Masks, inputs: Any, tolerance: float = 1e-10
) -> None:
    """Outputs and gradients of ``small`` are those of ``whole``, at the weights that are kept and left."""
    expected, found = outputs(whole, inputs), outputs(small, inputs)
    assert len(expected) == len(found) > 0
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance * max(1.0, float(a.detach().abs().max())))
    before, after = gradients(whole, expected), gradients(small, found)
    assert before.keys() == after.keys()
    scale = max(1.0, *(float(g.abs().max()) for g in before.values()))
    for name, gradient in before.items():
        mask = masks[name] if name in masks else torch.ones(gradient.shape, dtype=torch.bool)
        left, kept = (sliced(tensor, recipe.kept.get(name, {})) for tensor in (gradient, mask))
        torch.testing.assert_close(after[name] * kept, left * kept, rtol=tolerance, atol=tolerance * scale)
