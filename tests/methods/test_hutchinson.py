import pytest
import torch
from torch import nn
from torch.func import functional_call

import ntksap
from ntksap._base import generator_of
from ntksap.methods.hutchinson import hutchinson
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe
from tests.cases import BY_NAME


def explicit(module, net, masks, batches, temperature=200.0):
    """The gradient and the whole Hessian on each batch, with BatchNorm's statistics over all of them."""
    module = module.train()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.reset_running_stats()
            part.momentum = None  # the mean over batches
    theta = {name: p.detach().clone() for name, p in module.named_parameters()}
    masked = {**theta, **{name: theta[name] * masks[name] for name in net.prunable}}
    with torch.no_grad():
        module.load_state_dict(masked, strict=False)
        for inputs, _ in batches:
            module(inputs.double())
    module.eval()
    sizes = [theta[name].numel() for name in net.prunable]
    flat = torch.cat([masked[name].flatten() for name in net.prunable])

    def loss(flat, batch):
        parts = {n: p.view(theta[n].shape) for n, p in zip(net.prunable, flat.split(sizes), strict=True)}
        output = functional_call(module, {**theta, **parts}, (batch[0].double(),))
        return nn.functional.cross_entropy(output / temperature, batch[1], reduction="sum")

    gradients = [torch.autograd.functional.jacobian(lambda w, b=b: loss(w, b), flat) for b in batches]
    hessians = [torch.autograd.functional.hessian(lambda w, b=b: loss(w, b), flat) for b in batches]
    return torch.cat([theta[name].flatten() for name in net.prunable]), gradients, hessians


@pytest.mark.parametrize("case", ["conv-bn", "no-bias"])
def test_it_is_the_explicit_hessian_between_random_signs(case):
    case = BY_NAME[case]
    module = case.module().double()
    net = Net(module)
    generator = torch.Generator().manual_seed(5)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.7 for n in net.prunable}
    batches = case.batches(2)
    got = hutchinson(net, masks, Probe.of(net, data=batches, stream=True), probes=3)
    theta, gradients, hessians = explicit(module, net, masks, batches)
    g, h = torch.zeros_like(theta), torch.zeros_like(theta)
    for probe in range(3):  # the third takes the first batch again
        z = torch.cat(
            [
                torch.randint(2, net.weights[n].shape, generator=generator_of(0, 1, "signs", probe, n)).flatten() * 2
                - 1
                for n in net.prunable
            ]
        ).double()
        g += gradients[probe % 2] / 3
        h += z * (hessians[probe % 2] @ z) / 3
    expected = (theta * g + theta**2 * h / 2).abs()
    assert expected.max() > 0
    torch.testing.assert_close(torch.cat([s.flatten() for s in got.values()]), expected, rtol=1e-8, atol=1e-14)


def test_many_probes_find_the_diagonal():
    case = BY_NAME["no-bias"]
    module = case.module().double()
    net = Net(module)
    ones = {n: torch.ones(net.weights[n].shape, dtype=torch.bool) for n in net.prunable}
    batches = case.batches(1)
    theta, (g,), (h,) = explicit(module, net, ones, batches, temperature=1.0)
    exact = (theta * g + theta**2 * h.diagonal() / 2).abs()
    probe = Probe.of(net, data=batches, stream=True)
    off = []
    for probes in (4, 250):
        scores = hutchinson(net, ones, probe, probes=probes, temperature=1.0)
        off.append(float((torch.cat([s.flatten() for s in scores.values()]) - exact).norm() / exact.norm()))
    assert off[1] < off[0] / 3
    assert off[1] < 0.05


def test_batches_that_can_be_read_only_once_are_named():
    case = BY_NAME["conv-bn"]  # whose statistics take an epoch of their own
    with pytest.raises(
        ntksap.InputError, match="no batches in epoch 1: pass something that can be iterated over again"
    ):
        ntksap.prune(case.module(), 0.5, "hutchinson", data=iter(case.batches(3)))
    with pytest.raises(ntksap.InputError, match=r"no batches in epoch 1$"):
        ntksap.prune(case.module(), 0.5, "hutchinson", data=[])


def test_wrong_options_are_named():
    case = BY_NAME["no-bias"]
    for probes in (0, 2.5):
        with pytest.raises(ntksap.InputError, match=f"probes is a whole number of at least 1, not {probes}"):
            ntksap.prune(case.module(), 0.5, "hutchinson", data=case.batches(), probes=probes)
