"""Statistics of a batch, taken as published code takes them, against torch's own layers."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from ntksap import Net, models
from ntksap.net.batch_norm import batch_norm
from tests.analysis.kernels import set_statistics
from tests.cases import Residual, conv_bn


@pytest.mark.parametrize(
    ("make", "shape"),
    [(conv_bn, (2, 5, 5)), (Residual, (2, 5, 5)), (lambda: models.build("resnet8"), (3, 8, 8))],
    ids=["conv-bn", "residual", "resnet8"],
)
def test_statistics_are_those_that_one_pass_in_training_mode_records(make, shape):
    module = make().double()
    net = Net(module)
    inputs = torch.randn(6, *shape).double()
    statistics = net.statistics(net.weights, inputs)
    twin = copy.deepcopy(module).eval()
    set_statistics(twin, lambda: twin(inputs))
    for name, buffer in twin.named_buffers():
        if name.endswith(("mean", "var")):
            torch.testing.assert_close(statistics[name], buffer)
    torch.testing.assert_close(net(net.weights, inputs, norm=statistics), twin(inputs))


def test_statistics_carry_no_gradient():
    module = conv_bn().double()
    net = Net(module)
    inputs = torch.randn(6, 2, 5, 5).double()
    masks = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}
    leaves = net.leaves(net.weights, masks)
    statistics = net.statistics(leaves, inputs)
    assert not any(tensor.requires_grad for tensor in statistics.values())
    found = net.gradient(net(leaves, inputs, norm=statistics).square().sum(), leaves)
    twin = {name: weight.clone().requires_grad_() for name, weight in net.weights.items()}
    given = functional_call(copy.deepcopy(module).eval(), {**twin, **statistics}, (inputs,))
    expected = torch.autograd.grad(given.square().sum(), [twin[name] for name in net.prunable])
    torch.testing.assert_close(tuple(found.values()), expected)
    through = functional_call(copy.deepcopy(module).train(), twin, (inputs,)).square().sum()
    other = torch.autograd.grad(through, [twin[name] for name in net.prunable])
    assert not torch.allclose(other[0], expected[0], rtol=0.1)  # the test can tell: through the statistics it differs


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.norm(self.linear(self.norm(x)))


def test_each_use_of_a_layer_has_its_own_statistics():
    module = Twice().double()
    net = Net(module)
    inputs = torch.randn(50, 3).double() * 4 + 1
    statistics = net.statistics(net.weights, inputs)
    middle = module.linear((inputs - inputs.mean(0)) / (inputs.var(0, correction=0) + module.norm.eps).sqrt())
    torch.testing.assert_close(statistics["norm.running_mean"], inputs.mean(0))
    torch.testing.assert_close(statistics["norm.running_mean.1"], middle.mean(0).detach())
    torch.testing.assert_close(statistics["norm.running_var.1"], middle.var(0).detach())
    hidden = module.linear((inputs - inputs.mean(0)) / (inputs.var(0) + module.norm.eps).sqrt())
    expected = (hidden - middle.mean(0)) / (middle.var(0) + module.norm.eps).sqrt()
    torch.testing.assert_close(net(net.weights, inputs, norm=statistics), expected)
    assert int(module.norm.num_batches_tracked) == 0


class Clamped(nn.BatchNorm2d):
    """A layer of a user, with a forward pass of its own."""

    def forward(self, x):
        return super().forward(x).clamp(max=0.5)


def test_layers_of_other_kinds_keep_their_own_forward_pass():
    for layer in (
        Clamped(3),
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        nn.BatchNorm2d(3, affine=False),
    ):
        module = nn.Sequential(nn.Conv2d(2, 3, 3), layer).double()
        net = Net(module)
        inputs = torch.randn(4, 2, 6, 6).double()
        statistics = net.statistics(net.weights, inputs)
        hidden = module[0](inputs)
        variance = hidden.var((2, 3)).mean(0) if isinstance(layer, nn.InstanceNorm2d) else hidden.var((0, 2, 3))
        torch.testing.assert_close(statistics["1.running_var"], variance.detach())
        twin = copy.deepcopy(module).eval()
        twin[1].running_mean, twin[1].running_var = statistics["1.running_mean"], statistics["1.running_var"]
        torch.testing.assert_close(net(net.weights, inputs, norm=statistics), twin(inputs))


def test_a_module_that_views_its_tensors_works_too():
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)
            self.linear = nn.Linear(27, 2)

        def forward(self, x):
            return self.linear(self.conv(x).view(len(x), -1))

    module = Views()
    net = Net(module)
    inputs = torch.randn(4, 2, 5, 5)
    for _ in range(2):
        torch.testing.assert_close(net(net.weights, inputs), module(inputs))


def test_an_error_of_the_module_itself_is_not_hidden():
    module = conv_bn()
    net = Net(module)
    with pytest.raises(RuntimeError, match="channels"):
        net(net.weights, torch.randn(4, 5, 5, 5))
    inputs = torch.randn(4, 2, 5, 5)
    torch.testing.assert_close(net(net.weights, inputs), module.eval()(inputs))


@pytest.mark.parametrize("shape", [(6, 3, 4, 2), (7, 3)])
def test_batch_norm_and_its_two_derivatives(shape):
    torch.manual_seed(0)
    x = (torch.randn(shape).double() * 3 + 1).requires_grad_()
    weight, bias = torch.rand(3).double(), torch.rand(3).double()

    def expected(x):
        return nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3)

    torch.testing.assert_close(batch_norm(x, weight, bias, 1e-3), expected(x))
    assert torch.autograd.gradcheck(lambda x: batch_norm(x, weight, bias, 1e-3), x)
    assert torch.autograd.gradgradcheck(lambda x: batch_norm(x, weight, bias, 1e-3), x)
    assert torch.autograd.gradgradcheck(lambda x: batch_norm(x, None, None, 1e-3), x)


@pytest.mark.parametrize("channels", [3, 8, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives_with_channels_last_are_those_of_torch(channels, dtype):
    torch.manual_seed(0)
    x, v = torch.randn(2, 5, channels, 6, 7)  # 210 numbers per channel, in more than one block
    x = (x * 3 + 20).to(dtype)  # a mean far from 0 must not cancel the rest
    weight = torch.rand(channels)

    def product(x, weight, norm):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(norm(x, weight).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad((slope * v.to(x.dtype)).sum(), x)[0]

    def theirs(x, weight):
        return nn.functional.batch_norm(x, None, None, weight, training=True, eps=1e-3)

    last = x.contiguous(memory_format=torch.channels_last)
    found = product(last, weight.to(dtype), lambda x, weight: batch_norm(x, weight, None, 1e-3))
    expected = product(x.double(), weight.double(), theirs)
    exact = 1e-9 if dtype == torch.float64 else 1e-4
    assert float((found - expected).norm() / expected.norm()) < exact
