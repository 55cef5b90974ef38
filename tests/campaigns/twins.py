"""Textbook versions of three scores on a module with its own parameters in place, in float64."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ntksap import Net, Probe
from ntksap._base import global_seed
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.methods.snip import snip
from ntksap.methods.synflow import synflow
from ntksap.net import arguments, first_tensor, map_tensors
from ntksap.net.unfused import take_experts_apart
from tests.campaigns.kinds import Kind


def setting(kind: Kind) -> tuple[Net, dict[str, Tensor], Probe]:
    """The net of a kind in float64, random masks, and its probe."""
    chosen = {key: value for key, value in kind.settings.items() if key in ("include", "output")}
    net = Net(kind.module().double(), loss=loss, **chosen)
    generator = torch.Generator().manual_seed(5)
    masks = {
        name: torch.rand(net.weights[name].shape, generator=generator, dtype=torch.float32) < 0.8
        for name in net.prunable
    }
    generator = torch.Generator().manual_seed(3)
    data = [(kind.inputs(4, generator), torch.zeros(4))]
    return net, masks, Probe.of(net, inputs=kind.inputs, data=data)


def loss(output: Tensor, labels: Any) -> Tensor:
    return (output - 0.5).square().sum()


def loaded(kind: Kind, weights: dict[str, Tensor], *, batch: bool = False) -> nn.Module:
    """A fresh module of the kind that has these weights in place; normalisation by the batch if asked for."""
    module = kind.module().double().eval().requires_grad_(True)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name])
    take_experts_apart(module)  # a module of its own in float64 could not be called otherwise
    for part in module.modules():
        if isinstance(part, _NormBase):
            part.train(batch)
    return module


def output_of(kind: Kind, module: nn.Module, inputs: Any) -> Tensor:
    args, kwargs = arguments(map_tensors(inputs, lambda t: t.double() if t.is_floating_point() else t))
    chosen: Callable[[Any], Tensor] = kind.settings.get("output", first_tensor)
    with global_seed("forward"):  # as `Net` does, for modules that draw noise
        return chosen(module(*args, **kwargs))


def masked(weights: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight * masks[name] if name in masks else weight for name, weight in weights.items()}


def gradients(module: nn.Module, names: Any) -> dict[str, Tensor]:
    found = dict(module.named_parameters())
    return {name: torch.zeros_like(p) if (p := found[name]).grad is None else p.grad for name in names}


def agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    size = max(float(score.abs().max()) for score in expected.values())
    for name, score in expected.items():
        torch.testing.assert_close(found[name].double(), score, rtol=1e-5, atol=1e-8 * size, msg=name)


def snip_twin(kind: Kind) -> None:
    net, masks, probe = setting(kind)
    inputs, labels = probe.batches[0]
    module = loaded(kind, masked(net.weights, masks), batch=True)
    loss(output_of(kind, module, inputs), labels).backward()
    slopes = gradients(module, masks)
    # SNIP may leave out what is pruned, whose weights are 0
    found = snip(net, masks, probe)
    agree(
        {name: found[name] * masks[name] for name in masks},
        {name: (net.weights[name] * slopes[name]).abs() * masks[name] for name in masks},
    )


def synflow_twin(kind: Kind) -> None:
    net, masks, probe = setting(kind)
    weights = {name: weight.abs() for name, weight in net.weights.items()}
    module = loaded(kind, masked(weights, masks))
    output_of(kind, module, probe.ones(torch.float64)).sum().backward()
    slopes = gradients(module, masks)
    agree(synflow(net, masks, probe), {name: (weights[name] * slopes[name]).abs() for name in masks})


def ntk_sap_twin(kind: Kind) -> None:
    """Without layers that keep running statistics, whose rule has tests of its own."""
    net, masks, probe = setting(kind)
    if net.norm_buffers():
        return
    weights = net.draw(*probe.key("weights", 0))
    generator = probe.generator("perturbation", 0, 0)
    delta = {n: torch.randn(weights[n].shape, generator=generator, dtype=torch.float32) * 0.01 for n in masks}
    moved = {**weights, **{name: weights[name] + delta[name].double() for name in masks}}
    here, there = (loaded(kind, masked(w, masks)) for w in (weights, moved))
    inputs = probe.noise(0, 4)
    (output_of(kind, here, inputs) - output_of(kind, there, inputs)).square().sum().backward()
    first, second = gradients(here, masks), gradients(there, masks)
    expected = {n: (weights[n] * first[n] + moved[n] * second[n]).abs() * masks[n] for n in masks}
    found = ntk_sap(net, masks, probe, draws=1, batch=4)
    agree({name: found[name] * masks[name] for name in masks}, expected)


TWINS: dict[str, Callable[[Kind], None]] = {"snip": snip_twin, "synflow": synflow_twin, "ntk-sap": ntk_sap_twin}
