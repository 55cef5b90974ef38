"""Networks whose layers use the kernels for a while, against the same networks without them."""

import copy

import pytest
import torch
from torch import nn

import ntksap
from ntksap.data import load
from ntksap.net.kernels.batch_norm import normalised
from ntksap.net.kernels.choice import Choices
from ntksap.net.kernels.chosen import ChosenConv2d
from ntksap.net.kernels.compiler import library
from ntksap.net.kernels.layers import mostly_sparse, native_layers, sparse_layers, with_narrow
from ntksap.training.loop import train
from ntksap.training.recipe import Recipe
from ntksap.training.state import TrainState

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def sparse_resnet(density=0.1):
    model = ntksap.models.build("resnet20", input_shape=(3, 16, 16), seed=0).double().train()
    torch.manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    masks = {name: torch.rand(p.shape) < density for name, p in model.named_parameters() if p.dim() == 4}
    for name, mask in masks.items():
        model.get_parameter(name).data.mul_(mask)
    return model, masks


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_a_training_step_is_the_same_but_for_rounding():
    model, masks = sparse_resnet()
    twin = copy.deepcopy(model)
    x = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    expected = gradients(model, x)
    with native_layers(twin, sparse_layers(twin, masks)):
        found = gradients(twin, x)
    for name, gradient in expected.items():
        mask = masks.get(name, 1)
        torch.testing.assert_close(found[name] * mask, gradient * mask, rtol=1e-6, atol=1e-9)
    for (name, ours), theirs in zip(twin.named_buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_dense_layers_are_among_them_where_most_layers_are_sparse():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3))
    dense, sparse = (torch.full((16, 16, 3, 3), value) for value in (True, False))
    first = torch.ones(16, 3, 3, 3, dtype=torch.bool)
    assert list(sparse_layers(model, {"1.weight": sparse, "2.weight": sparse})) == [model[1], model[2]]
    masks = {"0.weight": first, "1.weight": sparse, "2.weight": sparse}
    assert list(sparse_layers(model, masks)) == [model[0], model[1], model[2]]
    masks = {"0.weight": first, "1.weight": dense, "2.weight": sparse}
    assert list(sparse_layers(model, masks)) == [model[2]]


def test_layers_count_by_the_size_that_their_images_probably_have():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 64, 3), nn.Conv2d(64, 64, 3))
    nothing = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in model.named_parameters()}
    assert mostly_sparse(model, {"0.weight": nothing["0.weight"]})
    assert not mostly_sparse(model, {"1.weight": nothing["1.weight"], "2.weight": nothing["2.weight"]})


def test_convolutions_of_very_few_channels_keep_everything_if_they_have_no_mask():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 9, 3), nn.Conv2d(9, 4, 3), nn.Conv2d(4, 4, 1, groups=4)
    )
    given = torch.zeros(4, 4, 3, 3, dtype=torch.bool)
    masks = with_narrow(model, {"1.weight": given})
    assert masks.keys() == {"0.weight", "1.weight"}
    assert masks["0.weight"].all()
    assert masks["1.weight"] is given
    assert with_narrow(nn.Conv2d(3, 4, 3), {}).keys() == {"weight"}
    assert with_narrow(nn.Conv2d(3, 4, 3, padding_mode="circular"), {}) == {}


def test_a_thin_network_is_trained_with_channels_first_and_has_the_gradients_of_torch():
    model = ntksap.models.build("resnet20-w4", seed=0).double().train()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    names, weights = zip(*model.named_parameters(), strict=True)
    expected = torch.autograd.grad(model(images).square().sum(), weights)
    with ntksap.sparse_kernels(model, {}) as measured:
        model(images)
    kept = {key: "kept" for key, seconds in measured.seconds.items() if "kept" in seconds}
    assert {key.split()[0] for key in kept} >= {"conv", "blocks.0.conv1", "blocks.3.shortcut.0"}
    with ntksap.sparse_kernels(model, {}, choices=Choices(kept)) as choices:
        assert choices.channels_first
        found = torch.autograd.grad(model(images).square().sum(), weights)
    for name, ours, theirs in zip(names, found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=name)


def test_the_module_is_as_it_was_afterwards_even_if_its_forward_pass_fails():
    model, masks = sparse_resnet()
    kinds = [type(layer) for layer in model.modules()]
    sparse = sparse_layers(model, masks)
    assert len(sparse) >= 15
    with pytest.raises(RuntimeError), native_layers(model, sparse):
        model(torch.zeros(1, 5, 16, 16, dtype=torch.float64))
    assert [type(layer) for layer in model.modules()] == kinds
    assert not any(hasattr(layer, "kept") for layer in model.modules())
    copy.deepcopy(model)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_move_as_torch_moves_them(momentum):
    theirs, ours = (nn.Sequential(nn.BatchNorm2d(3, momentum=momentum)).train() for _ in range(2))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 3, 5, 5) * 3 + 1
        y = theirs(x)
        with native_layers(ours, {}):
            torch.testing.assert_close(ours(x), y)
    for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("images", [4, 5])  # places in multiples of a vector, and not
@pytest.mark.parametrize(("channels", "threads"), [(3, 1), (8, 2), (21, 3), (130, 2)])
def test_batch_norm_and_its_derivatives_are_those_of_torch(layout, images, channels, threads):
    torch.manual_seed(0)
    x = (torch.randn(images, channels, 7, 6, dtype=torch.float64) * 3 + 1).to(memory_format=layout).requires_grad_()
    norm, g, before = nn.BatchNorm2d(channels).double().train(), torch.randn(x.shape).double(), torch.get_num_threads()
    nn.init.normal_(norm.weight)
    expected = norm(x)
    derivatives = torch.autograd.grad(expected, (x, norm.weight, norm.bias), g)
    try:
        torch.set_num_threads(threads)
        with native_layers(norm, {}):
            y = norm(x)
            assert "_BatchNorm" in repr(y.grad_fn)
            found = torch.autograd.grad(y, (x, norm.weight, norm.bias), g)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(y, expected)
    for ours, theirs in zip(found, derivatives, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_batch_norm_of_other_channels_is_refused():
    with native_layers(norm := nn.BatchNorm2d(3).train(), {}), pytest.raises(RuntimeError, match="of 3 channels"):
        norm(torch.ones(2, 5, 4, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_variance_survives_a_large_mean(layout):
    x = (torch.randn(8, 2, 30, 30) + 3000).to(memory_format=layout)
    _, mean, variance, *_ = normalised(x, None, None, 1e-5)
    torch.testing.assert_close(mean.double(), x.double().mean((0, 2, 3)))
    torch.testing.assert_close(variance.double(), x.double().var((0, 2, 3), unbiased=False), rtol=1e-4, atol=0)


def test_a_loss_that_is_not_finite_stays_visible():
    x = torch.randn(2, 3, 4, 4)
    x[0, 1] = float("nan")
    with native_layers(norm := nn.BatchNorm2d(3).train(), {}):
        assert torch.isnan(norm(x)[:, 1]).all()
        assert torch.isfinite(norm(x)[:, 0]).all()


@pytest.mark.parametrize("norm", ["running", "batch"])
def test_scores_of_kept_weights_are_those_of_the_dense_evaluation(norm):
    model, masks = sparse_resnet(0.2)
    net = ntksap.Net(model, exclude=nn.Linear)
    masks = {name: masks[name] for name in net.prunable}
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    leaves = net.leaves(net.weights, masks)
    dense = net.gradient(net(leaves, x, norm=norm).square().sum(), leaves)
    kept = net.gradient(net(leaves, x, norm=norm, kept=masks).square().sum(), leaves)
    for name, mask in masks.items():
        torch.testing.assert_close(kept[name] * mask, dense[name] * mask, rtol=1e-6, atol=1e-9)
    statistics, taken = net.statistics(leaves, x), net.statistics(leaves, x, kept=masks)
    for name, value in statistics.items():
        torch.testing.assert_close(taken[name], value, msg=name)


def test_a_pruned_model_gives_the_same_output_inside_the_block():
    model, masks = sparse_resnet()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        expected = model.eval()(x)
        for given in (masks, None):
            with ntksap.sparse_kernels(model, given) as used:
                torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected)
            assert used


def test_a_dense_model_has_dense_kernels_and_a_compiled_one_is_left_alone():
    model, masks = sparse_resnet()
    dense = ntksap.models.build("resnet20", seed=0)
    with ntksap.sparse_kernels(dense) as used:
        assert not used
        assert type(dense.conv) is ChosenConv2d
    assert type(dense.conv) is nn.Conv2d
    with ntksap.sparse_kernels(torch.compile(model), masks) as used:
        assert not used
        assert type(model.conv) is nn.Conv2d


def test_training_uses_the_kernels_and_learns_the_same(monkeypatch):
    data = load("digits")
    recipe = Recipe(epochs=1, batch=128, lr=0.1, augment=False)
    losses = []
    for kernels in (library, lambda: None):
        monkeypatch.setattr("ntksap.net.kernels.compiler.library", kernels)
        model = ntksap.models.build("resnet8", input_shape=data.input_shape, num_classes=10, seed=0)
        masks = ntksap.prune(model, 0.9, "random")
        with torch.profiler.profile() as profile:
            (record,) = train(TrainState(model, recipe, masks=masks), data)
        names = {event.key for event in profile.key_averages()}
        assert ("_SparseConv" in names) == (kernels is library)
        assert type(model.conv) is nn.Conv2d
        losses.append((record.train_loss, record.test_loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_one_number_per_channel_has_no_variance_and_torch_says_so():
    net = ntksap.Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        net.statistics(net.weights, torch.ones(1, 3))
