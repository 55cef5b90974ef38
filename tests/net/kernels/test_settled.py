"""Layers that are left to torch are not asked again in later calls of the whole module, and nothing else changes."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

import ntksap
from ntksap.net.kernels import choice, library
from ntksap.net.kernels.chains import Chained
from ntksap.net.kernels.chosen import ChosenConv2d, ChosenLinear
from ntksap.net.kernels.settled import SettledBatchNorm2d, SettledConv2d, SettledLinear

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


class Network(nn.Module):
    """Two convolutions, of which torch never does the second at high sparsity; a BatchNorm and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x, scale=1, extra=None):
        y = torch.tanh(self.second(torch.tanh(self.norm(self.first(x)))))
        return scale * self.last(y.mean((2, 3)))


def pruned(model=None):
    torch.manual_seed(0)
    model = (model or Network()).double()
    masks = ntksap.prune(model, 0.8, "random")
    masks.attach(model)
    return model, masks, torch.randn(4, 3, 8, 8, dtype=torch.float64)


def kinds(model):
    return [type(layer) for layer in (model.first, model.norm, model.second, model.last)]


@pytest.fixture
def second_by_kept_weights(monkeypatch, fastest):
    """Torch is fastest, except where 16 channels are convolved."""
    fastest("torch")
    measured = choice.measure

    def measure(ways):
        found = measured(ways)
        return {**found, "kept": 0.1} if {"dense", "kept"} <= set(ways) else found

    monkeypatch.setattr(choice, "measure", measure)


@pytest.mark.usefixtures("second_by_kept_weights")
@pytest.mark.parametrize("training", [True, False])
def test_what_torch_did_in_the_first_call_it_does_at_once_in_the_next(training):
    model, masks, x = pruned()
    model.train(training)
    with ntksap.sparse_kernels(model, masks):
        first = model(x)
        gradients = torch.autograd.grad(first.square().sum(), model.parameters())
        assert kinds(model)[0] is ChosenConv2d
        second = model(x)
        again = torch.autograd.grad(second.square().sum(), model.parameters())
        norm = SettledBatchNorm2d if training else type(model.norm)
        assert kinds(model) == [SettledConv2d, norm, ChosenConv2d, SettledLinear]
        assert isinstance(model.norm, SettledBatchNorm2d) is training
    assert second.equal(first)
    assert all(one.equal(other) for one, other in zip(gradients, again, strict=True))
    assert kinds(model) == [nn.Conv2d, nn.BatchNorm2d, nn.Conv2d, nn.Linear]
    assert type(model) is Network


@pytest.mark.usefixtures("second_by_kept_weights")
def test_another_situation_is_settled_on_its_own_and_remembered():
    model, masks, x = pruned()
    model.eval()
    others = {
        "fewer inputs": lambda: model(x[:1]),
        "another layout": lambda: model(x.to(memory_format=torch.channels_last)),
        "by name": lambda: model(x=x, scale=2),
        "derivatives": lambda: torch.enable_grad()(model)(x),
    }
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        for call in others.values():
            model(x), model(x)
            settled = kinds(model)
            call()
            assert SettledLinear not in kinds(model)  # a new situation: all choose
            call()
            assert SettledLinear in kinds(model)
            assert model(x) is not None
            assert kinds(model) == settled  # an old one: at once
        model(x, extra=[x])  # what cannot be told from shapes is never settled
        model(x, extra=[x])
        assert kinds(model)[0] is ChosenConv2d


@pytest.mark.usefixtures("second_by_kept_weights")
def test_weights_that_begin_to_learn_are_another_situation():
    model, masks, x = pruned()
    model.requires_grad_(False)
    with ntksap.sparse_kernels(model, masks) as choices:
        model(x), model(x)
        assert kinds(model)[3] is SettledLinear
        model.last.weight.requires_grad_(True)
        model(x)
        assert kinds(model)[3] is ChosenLinear
    assert "last 4×16, derivatives 01, float64" in choices.ways


def test_a_call_that_fails_settles_nothing(fastest):
    fastest("torch")
    model, masks, x = pruned()
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        with pytest.raises(RuntimeError):
            model(x[:, :2])
        with pytest.raises(RuntimeError):
            model(x[:, :2])
        assert kinds(model)[0] is ChosenConv2d


def test_a_settled_module_is_still_not_recorded(fastest):
    fastest("torch")
    model, masks, x = pruned()
    model.eval()
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        model(x), model(x)
        assert kinds(model)[0] is SettledConv2d
        for record in (torch.jit.trace, lambda model, x: torch.export.export(model, (x,))):
            with pytest.raises(ntksap.InputError, match="leave the block first"):
                record(model, x)
        with pytest.raises(ntksap.InputError, match="leave the block first"):
            torch.jit.script(model)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_settled_module_work_and_are_independent(fastest, copied):
    fastest("torch")
    model, masks, x = pruned()
    model.eval()
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        expected = model(x)
        model(x)
        twin = copied(model)
        assert type(twin) is Network
        assert not any("settle" in name for name in vars(twin))
        model.last.weight.zero_()
        assert twin(x).equal(expected)
    assert twin(x).equal(expected)


def test_hooks_on_settled_layers_are_called(fastest):
    fastest("torch")
    model, masks, x = pruned()
    calls = itertools.count()
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        model(x), model(x)
        model.last.register_forward_hook(lambda *_: next(calls) and None)
        model(x)
    assert next(calls) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_chain_keeps_its_layers_as_long_as_it_is_one(fastest, kept):
    fastest("kept", "fused") if kept else fastest("torch")
    block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    model, masks, _ = pruned(nn.Sequential(block, nn.Flatten(), nn.Linear(16 * 32 * 32, 4)))
    x = torch.randn(8, 16, 32, 32, dtype=torch.float64)
    expected = model.eval()(x)
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        for _ in range(3):
            torch.testing.assert_close(model(x), expected)
        assert isinstance(block, Chained) is kept
        assert (type(block[0]) is SettledConv2d) is not kept


def test_convolutions_that_torch_needs_help_with_are_always_asked(fastest):
    fastest("torch")
    thin = nn.Conv2d(4, 8, 1, stride=2)
    turned = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    model, masks, _ = pruned(nn.Sequential(thin, nn.Tanh(), turned, nn.Tanh(), nn.Conv2d(8, 8, 3)))
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        for _ in range(2):
            y = model(torch.randn(2, 4, 16, 16, dtype=torch.float64))
        assert [type(model[i]) for i in (0, 2, 4)] == [ChosenConv2d, ChosenConv2d, SettledConv2d]
    assert y.is_contiguous()


@pytest.mark.parametrize("kind", ["convolution", "chain", "linear"])
def test_weights_that_are_computed_before_each_call_are_left_alone(fastest, kind):
    fastest("kept", "fused")
    computed = torch.nn.utils.spectral_norm(nn.Linear(3, 16) if kind == "linear" else nn.Conv2d(3, 16, 3))
    after = {"convolution": nn.Tanh(), "chain": nn.BatchNorm2d(16), "linear": nn.Tanh()}[kind]
    model = nn.Sequential(nn.Sequential(computed, after), nn.Linear(64, 8)).eval()
    masks = ntksap.prune(model, 0.9, "random", include=["1.weight"])
    masks.attach(model)
    x = torch.randn(64, 66, 66, 3) if kind == "linear" else torch.randn(8, 3, 66, 66)
    model[1] = model[1] if kind != "linear" else nn.Tanh()
    with torch.no_grad():
        expected = model(x)
        with ntksap.sparse_kernels(model, masks):
            for _ in range(2):
                torch.testing.assert_close(model(x), expected)


def test_a_kernel_must_save_more_than_coming_to_it_costs():
    assert choice._fastest({"torch": 100e-6, "kept": 85e-6}).way == "torch"
    assert choice._fastest({"torch": 100e-6, "kept": 75e-6}).way == "kept"
    assert choice._fastest({"torch": 1.0, "kept": 0.94}).way == "torch"
