"""The empirical NTK of ResNet-20 and its eigenvalues: against vmap(jacrev) and one product."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import ntksap
from benchmarks.harness import Job


def textbook(model: nn.Module, inputs: Tensor, masks: dict[str, Tensor]) -> Tensor:
    """J of every input by vmap(jacrev), whole, float32; Θ = J diag(m) Jᵀ; its eigenvalues, descending."""
    masked = {name: p.detach() * masks[name] for name, p in model.named_parameters() if name in masks}
    others = {name: t.detach() for name, t in model.state_dict().items() if name not in masks}

    def output(weights: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(model, {**weights, **others}, (one[None],))[0]

    jacobian = vmap(jacrev(output), (None, 0))(masked, inputs)
    rows = len(inputs) * 10
    kernel = torch.zeros(rows, rows)
    for name, part in jacobian.items():
        part.mul_(masks[name])
        kernel += part.view(rows, -1) @ part.view(rows, -1).T
    return torch.linalg.eigvalsh(kernel).flip(0)


def product(model: nn.Module, inputs: Tensor, masks: dict[str, Tensor]) -> Tensor:
    return ntksap.ntk(model, inputs, masks).eigenvalues


def _job(name: str, title: str, density: float) -> Job:
    generator = torch.Generator().manual_seed(0)
    model = ntksap.models.build("resnet20", input_shape=(3, 32, 32), seed=0).eval()
    inputs = torch.randn(100, 3, 32, 32, generator=generator)
    parameters = dict(model.named_parameters())
    masks = {n: torch.rand(parameters[n].shape, generator=generator) < density for n in ntksap.Net(model).prunable}
    return Job(
        name=name,
        title=title,
        target="≥ 3×, peak memory ≤ 1/3",
        textbook=lambda: textbook(model, inputs, masks),
        product=lambda: product(model, inputs, masks),
        agreement=lambda theirs, ours: {"eigenvalues_differ_by": float(((theirs - ours) / ours[0]).abs().max())},
    )


ntk_resnet20 = partial(_job, "ntk-resnet20", "NTK of ResNet-20, 100 inputs, dense, eigenvalues included", 2.0)
ntk_resnet20_sparse = partial(_job, "ntk-resnet20-sparse", "the same at sparsity 0.956", 0.044)
