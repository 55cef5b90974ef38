"""Pruning the textbook way, as the published code of these methods does it: oracle and baseline of the benchmarks.

Layers that multiply their weight by a mask in every forward pass, derivatives with respect to the mask, a separate pass
for the BatchNorm statistics, eager float32, NCHW. Nothing of the product's engine is used except its generators and its
initialiser, so that both sides see the same draws and can be compared weight by weight.
"""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ntksap._base.seeds import generator_of, global_seed
from ntksap.net.initialisers import kaiming_normal

Batches = Sequence[tuple[Tensor, Tensor]]
Masks = dict[str, Tensor]


class MaskedConv2d(nn.Conv2d):
    mask: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.mask, self.bias)


class MaskedLinear(nn.Linear):
    mask: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


def masked(model: nn.Module) -> tuple[nn.Module, dict[str, nn.Module]]:
    """Return a copy whose convolutions and linear layers hold masks, and those layers by the name of their weight."""
    model = copy.deepcopy(model)
    layers = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.__class__ = MaskedConv2d if isinstance(layer, nn.Conv2d) else MaskedLinear
            layer.mask = nn.Parameter(torch.ones_like(layer.weight))
            layers[f"{name}.weight"] = layer
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith(".mask"))
    return model, layers


def prune(model: nn.Module, density: float, rounds: int, score: Callable[..., list[Tensor]], *args: object) -> Masks:
    """Score, keep the best d^(t/T) of all weights, repeat; a pruned weight scores below everything."""
    model, layers = masked(model)
    for t in range(1, rounds + 1):
        scores = score(model, list(layers.values()), t, *args)
        every = torch.cat(
            [s.masked_fill(layer.mask == 0, -math.inf).flatten() for s, layer in zip(scores, layers.values())]
        )
        removed = len(every) - round(density ** (t / rounds) * len(every))
        keep = every > every.kthvalue(removed).values
        for layer, part in zip(layers.values(), keep.split([layer.mask.numel() for layer in layers.values()])):
            layer.mask.data = part.view_as(layer.mask).float()
    return {name: layer.mask.bool() for name, layer in layers.items()}


def ntk_sap(
    model: nn.Module, layers: list[nn.Module], t: int, shape: tuple[int, ...], draws: int, batch: int, seed: int
) -> list[Tensor]:
    """|Σ ∂/∂m Σ(f(z; θ⊙m) − f(z; (θ+Δ)⊙m))²| over the draws, ε = 10⁻⁴."""
    total = [torch.zeros_like(layer.mask) for layer in layers]
    for index in range(draws):
        with torch.no_grad(), global_seed(seed, t, "weights", index):
            kaiming_normal(model)
        inputs = torch.randn(batch, *shape, generator=generator_of(seed, t, "noise", index))
        set_statistics(model, inputs)
        here = model(inputs)
        generator = generator_of(seed, t, "perturbation", index, 0)
        with torch.no_grad():
            kept = [layer.weight for layer in layers]
            for layer in layers:
                layer.weight = nn.Parameter(
                    layer.weight + torch.randn(layer.weight.shape, generator=generator) * math.sqrt(1e-4),
                    requires_grad=False,
                )
        there = model(inputs)
        gradients = torch.autograd.grad((here - there).square().sum(), [layer.mask for layer in layers])
        for layer, weight in zip(layers, kept):
            layer.weight = weight
        total = [old + new for old, new in zip(total, gradients)]
    return [value.abs() for value in total]


def set_statistics(model: nn.Module, inputs: Tensor) -> None:
    """Fill the BatchNorm buffers with the statistics of this one batch, from one pass in train mode."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    with torch.no_grad():
        model.train()(inputs)
    model.eval()


def snip(model: nn.Module, layers: list[nn.Module], t: int, batches: Batches) -> list[Tensor]:
    """|∂L/∂m|, L summed over the batches."""
    model.train()
    total = [torch.zeros_like(layer.mask) for layer in layers]
    for inputs, labels in batches:
        loss = F.cross_entropy(model(inputs), labels, reduction="sum")
        gradients = torch.autograd.grad(loss, [layer.mask for layer in layers])
        total = [old + new for old, new in zip(total, gradients)]
    return [value.abs() for value in total]


def grasp(
    model: nn.Module, layers: list[nn.Module], t: int, batches: Batches, temperature: float = 200.0
) -> list[Tensor]:
    """θ ⊙ H g: the gradient over all batches first, then with a graph, batch by batch, its product with g."""
    model.train()
    weights = [layer.weight.requires_grad_() for layer in layers]

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs) / temperature, labels, reduction="sum")

    flow = [torch.zeros_like(weight) for weight in weights]
    for batch in batches:
        flow = [old + new for old, new in zip(flow, torch.autograd.grad(loss(*batch), weights))]
    total = [torch.zeros_like(weight) for weight in weights]
    for batch in batches:
        slope = torch.autograd.grad(loss(*batch), weights, create_graph=True)
        inner = sum((s * f).sum() for s, f in zip(slope, flow))
        total = [old + new for old, new in zip(total, torch.autograd.grad(inner, weights))]
    return [weight.detach() * value for weight, value in zip(weights, total)]


def synflow(model: nn.Module, layers: list[nn.Module], t: int, shape: tuple[int, ...]) -> list[Tensor]:
    """|θ| ⊙ ∂R/∂|θ| with R = Σ f(1; |θ|⊙m): parameters made positive, one pass each way, signs restored."""
    model.eval()
    state = {name: value for name, value in model.named_parameters() if not name.endswith(".mask")}
    signs = {name: value.detach().sign() for name, value in state.items()}
    with torch.no_grad():
        for value in state.values():
            value.abs_()
    total = model(torch.ones(1, *shape)).sum()
    gradients = torch.autograd.grad(total, [layer.mask for layer in layers])
    with torch.no_grad():
        for name, value in state.items():
            value.mul_(signs[name])
    return [gradient.abs() for gradient in gradients]
