"""ProsPr against autograd through the explicitly unrolled steps, in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from ntksap.methods.prospr import prospr
from ntksap.methods.snip import snip
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe
from tests.cases import BY_NAME


def setting(case_name: str, density: float = 1.0, batches: int = 4):
    case = BY_NAME[case_name]
    module = case.module().double().train()
    net = Net(module)
    probe = Probe.of(net, data=case.batches(batches), stream=True)
    generator = torch.Generator().manual_seed(5)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < density for n in net.prunable}
    return module, net, probe, masks


def unrolled(module, net, masks, batches, steps, lr, momentum):
    """|∂L(w_M)/∂c| with the whole graph of all steps; frozen parameters stay, pruned weights stay zero."""

    def loss(weights, batch):
        inputs, labels = batch
        output = functional_call(copy.deepcopy(module), weights, (inputs,))  # a copy: BatchNorm changes its buffers
        return nn.functional.cross_entropy(output, labels)

    theta = {name: p.detach() for name, p in module.named_parameters()}
    c = {name: masks[name].double().requires_grad_() for name in net.prunable}
    weights = {**theta, **{name: theta[name] * c[name] for name in net.prunable}}
    moved = [name for name, p in module.named_parameters() if p.requires_grad]
    weights.update({name: weights[name].clone().requires_grad_() for name in moved if name not in net.prunable})
    speed = dict.fromkeys(moved, 0.0)
    for k in range(steps):
        slope = torch.autograd.grad(loss(weights, batches[k]), [weights[n] for n in moved], create_graph=True)
        for name, gradient in zip(moved, slope, strict=True):
            speed[name] = momentum * speed[name] + gradient
        weights = {
            **weights,
            **{name: weights[name] - lr * speed[name] * masks.get(name, torch.tensor(True)) for name in moved},
        }
    slope = torch.autograd.grad(loss(weights, batches[steps]), list(c.values()))
    return {name: gradient.abs() for name, gradient in zip(c, slope, strict=True)}


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize(("case", "density"), [("conv-bn", 1.0), ("residual", 0.6), ("frozen", 1.0), ("tied", 0.7)])
def test_the_meta_gradient_is_that_of_the_unrolled_loop(case, density, momentum):
    module, net, probe, masks = setting(case, density)
    got = prospr(net, masks, probe, prune_lr=0.3, prune_momentum=momentum)
    batches = list(probe.epoch(0, labelled=True))
    expected = unrolled(module, net, masks, batches, 3, 0.3, momentum)
    first_order = prospr(net, masks, probe, prune_lr=0.3, prune_momentum=momentum, first_order=True)
    for name in net.prunable:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-9, atol=1e-14)
    assert any(not torch.allclose(got[name], first_order[name], rtol=1e-2) for name in net.prunable)


def test_one_batch_for_all_steps():
    module, net, probe, masks = setting("no-bias")
    first = next(probe.epoch(0, labelled=True))
    got = prospr(net, masks, probe, inner_steps=5, new_batches=False)
    expected = unrolled(module, net, masks, [first] * 6, 5, 0.1, 0.0)
    for name in net.prunable:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-9, atol=1e-14)


def test_without_steps_it_is_snip():
    _, net, probe, masks = setting("conv-bn", 0.5, batches=1)
    held = Probe.of(net, data=BY_NAME["conv-bn"].batches(1))
    for name, score in prospr(net, masks, probe, inner_steps=0).items():
        torch.testing.assert_close(score * 6, snip(net, masks, held)[name])  # a mean over six samples, not a sum
