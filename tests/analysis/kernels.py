"""The slow and obvious way to a kernel, which knows nothing of `Net`; and tiny nets with random masks."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from ntksap.net.net import arguments, first_tensor
from ntksap.net.prunable import prunable_names
from tests.cases import BY_NAME


def setting(name: str, *, inputs: int = 4, density: float = 0.6) -> tuple[nn.Module, Any, dict[str, Tensor]]:
    """A case in float64 with running statistics of some training, its inputs, and a random mask."""
    case = BY_NAME[name]
    module = case.module().double()
    generator = torch.Generator().manual_seed(3)
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.running_mean = torch.randn(part.num_features, generator=generator).double()
            part.running_var = 0.5 + torch.rand(part.num_features, generator=generator).double()
    batch, _ = case.batches(1, inputs)[0]
    batch = tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, batch)
    parameters = dict(module.named_parameters())
    masks = {n: torch.rand(parameters[n].shape, generator=generator) < density for n in prunable_names(module)}
    return module.train(), batch, masks


def set_statistics(module: nn.Module, evaluate: Callable[[], object]) -> None:
    """Fill each BatchNorm's buffers with the statistics of one batch, by one pass in training mode, as published."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().momentum = 1.0
    if norms:  # functional_call leaves a module that is registered under two names changed
        evaluate()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval().momentum = momentum


def explicit_jacobian(module: nn.Module, inputs: Any, masks: dict[str, Tensor], norm: str = "running") -> Tensor:
    """∂f/∂w at w = θ⊙m (rows × all weights of the masked tensors): the columns of pruned ones as well."""
    module = copy.deepcopy(module).eval()
    theta = {name: p.detach().clone() for name, p in module.named_parameters()}
    weights = {**theta, **{name: theta[name] * mask for name, mask in masks.items()}}
    args, kwargs = arguments(inputs)
    if norm == "batch":
        set_statistics(module, lambda: functional_call(module, weights, args, kwargs))

    def f(*tensors: Tensor) -> Tensor:
        moved = {**weights, **dict(zip(masks, tensors, strict=True))}
        return first_tensor(functional_call(module, moved, args, kwargs)).flatten()

    blocks = torch.autograd.functional.jacobian(f, tuple(weights[name] for name in masks))
    return torch.cat([block.flatten(1) for block in blocks], dim=1)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def explicit_ntk(module: nn.Module, inputs: Any, masks: dict[str, Tensor], norm: str = "running") -> Tensor:
    jacobian = explicit_jacobian(module, inputs, masks, norm)[:, flat(masks)]  # pruned columns are taken out
    return jacobian @ jacobian.T
