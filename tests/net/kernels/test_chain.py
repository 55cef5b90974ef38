"""A convolution, BatchNorm, a sum and a ReLU as one: what torch gives layer by layer, in any module written so."""

import copy
import pickle
import random

import pytest
import torch
from torch import is_grad_enabled, nn
from torch.nn import functional

import ntksap
from ntksap.net.kernels import chains as found_in_code
from ntksap.net.kernels import library
from ntksap.net.kernels.chain import FUSED, FUSED_KEPT
from ntksap.net.kernels.chains import Chained, follow

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


class Block(nn.Module):
    """Four kinds of chains: with and without a sum, with and without a ReLU."""

    def __init__(self, channels=16, stride=1, bias=False):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=bias)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.bn2 = nn.BatchNorm2d(channels, affine=False)
        self.conv3 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.bn3 = nn.BatchNorm2d(channels, momentum=None)
        self.short = nn.Sequential(nn.Conv2d(channels, channels, 1, stride, bias=bias), nn.BatchNorm2d(channels))
        self.missing = None

    def forward(self, x):
        short = self.short(x)
        if self.missing is not None:
            short = self.missing(short)
        y = functional.relu(self.bn1(self.conv1(x)))
        y = torch.relu(torch.add(self.bn2(self.conv2(y)), short))
        z = self.bn3(self.conv3(y))
        z += y
        return z


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chains take any number of pixels."""
    monkeypatch.setattr(found_in_code, "FEW", 0)


def pruned(module, sparsity=0.7):
    masks = ntksap.prune(module, sparsity, "random")
    masks.attach(module)
    return masks


def chains(choices):
    return {name: way for name, way in choices.ways.items() if " + " in name}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("way", "joined"),
    [("torch", FUSED), ("dense", FUSED), ("kept", FUSED), ("torch", FUSED_KEPT), ("dense", FUSED_KEPT)],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("size", "stride", "channels"), [((4, 8, 8), 1, 16), ((3, 7, 5), 1, 11), ((2, 9, 16), 2, 10), ((1, 32, 32), 1, 12)]
)
def test_chains_give_what_layers_give(fastest, way, joined, layout, size, stride, channels, threads):
    fastest(way, joined)
    torch.manual_seed(0)
    model = Block(channels, stride, bias=stride == 2).double()
    masks, twin = pruned(model), copy.deepcopy(model)
    x = torch.randn(size[0], channels, *size[1:], dtype=torch.float64).to(memory_format=layout).requires_grad_()
    mine, before = x.detach().clone().requires_grad_(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with ntksap.sparse_kernels(model, masks) as choices:
            for _ in range(2):  # running statistics follow
                found = model(mine)
            found.square().sum().backward()
            model.eval()
            with torch.no_grad():
                evaluated = model(mine)
    finally:
        torch.set_num_threads(before)
    for _ in range(2):
        expected = twin(x)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine.grad, x.grad)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * masks.get(name, 1), msg=name)
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(evaluated, twin.eval()(x))
    assert found.is_contiguous(memory_format=layout)
    assert len(chains(choices)) == 8  # four chains, trained and evaluated
    offered = joined == FUSED or layout == torch.contiguous_format
    assert set(chains(choices).values()) == {joined if offered else "torch"}


def test_results_that_are_larger_than_the_caches_are_the_same(fastest):
    fastest("kept", "fused")
    torch.manual_seed(0)
    model = Block()
    masks, twin = pruned(model), copy.deepcopy(model)
    x = torch.randn(70, 16, 32, 32)
    with ntksap.sparse_kernels(model, masks):
        found = model(x)
        found.square().mean().backward()
    expected = twin(x)
    expected.square().mean().backward()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_what_is_not_a_number_stays_so(fastest):
    fastest("kept", "fused")
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    masks = pruned(model, 0.5)
    x = torch.full((1, 8, 10, 10), torch.nan)
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        assert model(x).isnan().all()


@pytest.mark.parametrize("name", ["resnet8", "vgg11-bn", "resnet18"])
def test_our_networks_are_made_of_chains(fastest, name):
    fastest("kept", "fused")
    torch.manual_seed(0)
    model = ntksap.models.build(name, input_shape=(3, 32, 32)).double()
    masks = ntksap.prune(model, 0.9, "random")
    masks.attach(model)
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with ntksap.sparse_kernels(model, masks) as choices:
        found = model(x)
        found.square().sum().backward()
    expected = twin(x)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected)
    for (part, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * masks.get(part, 1), msg=part)
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert len(chains(choices)) == norms


def test_the_record_names_the_layers_and_the_slower_way_is_not_taken(fastest):
    fastest("kept")
    model, x = Block(), torch.randn(2, 16, 8, 8)
    masks = pruned(model)
    with ntksap.sparse_kernels(model, masks) as choices:
        assert isinstance(model, Chained)
        model(x)
    assert type(model) is Block
    assert not [name for name in vars(model) if "chain" in name]
    assert chains(choices) == {
        f"{name} 2×16×8×8, derivatives {learns}1, float32": "torch"
        for name, learns in {
            "short.0 + 1": "01",
            "conv1 + bn1 + ReLU": "01",
            "conv2 + bn2 + sum + ReLU": "11",
            "conv3 + bn3 + sum": "11",
        }.items()
    }


def test_whoever_watches_a_layer_sees_every_call(fastest):
    fastest("kept", "fused")
    model, seen = Block(), []
    masks = pruned(model)
    model.bn1.register_forward_hook(lambda layer, given, result: seen.append(result.min().item()))
    with ntksap.sparse_kernels(model, masks):
        model(torch.randn(2, 16, 8, 8))
    assert len(seen) == 1
    assert seen[0] < 0  # before the ReLU


def test_derivatives_in_evaluation_are_those_of_torch(fastest):
    fastest("kept", "fused")
    model, x = Block().double().eval(), torch.randn(2, 16, 8, 8, dtype=torch.float64, requires_grad=True)
    masks = pruned(model)
    expected = torch.autograd.grad(model(x).sum(), x)[0]
    with ntksap.sparse_kernels(model, masks):
        torch.testing.assert_close(torch.autograd.grad(model(x).sum(), x)[0], expected)


def test_errors_and_broadcast_sums_are_those_of_torch(fastest):
    fastest("kept", "fused")

    class Sum(nn.Module):
        def __init__(self, stride):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(8, 8, 3, stride, padding=1), nn.BatchNorm2d(8)

        def forward(self, x):
            return self.bn(self.conv(x)) + x

    one, other = Sum(8), Sum(4)
    for model in (one, other):
        pruned(model, 0.5)
    x = torch.randn(2, 8, 8, 8)
    expected = one(x)  # (2, 8, 1, 1) is added to every place
    with ntksap.sparse_kernels(one):
        torch.testing.assert_close(one(x), expected)
    with ntksap.sparse_kernels(other), pytest.raises(RuntimeError, match="size"):
        other(x)
    with ntksap.sparse_kernels(one), pytest.raises(RuntimeError):
        one(torch.randn(2, 4, 8, 8))
    with ntksap.sparse_kernels(one), pytest.raises(ValueError, match="more than 1 value per channel"):
        one(x[:1])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_made_inside_the_block_is_independent(fastest, copied):
    fastest("kept", "fused")
    model, x = Block().eval(), torch.randn(2, 16, 8, 8)
    masks = pruned(model)
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        twin = copied(model)
        assert type(twin) is Block
        before = twin(x)
        torch.testing.assert_close(before, model(x))
        for parameter in model.parameters():
            parameter.zero_()
        assert twin(x).equal(before)
        assert not model(x).equal(before)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.flag = True


class Branching(Plain):
    def forward(self, x):
        return self.relu(self.bn(self.conv(x))) if self.training else self.bn(self.conv(x))


class Flagged(Plain):
    def forward(self, x):
        y = self.bn(self.conv(x))
        return self.relu(y) if self.flag else y


class ByChance(Plain):
    def forward(self, x):
        y = self.bn(self.conv(x))
        return self.relu(y) if random.random() < 0.5 else y


class Counting(Plain):
    def forward(self, x):
        self.calls = 1
        return self.relu(self.bn(self.conv(x)))


class TwoReaders(Plain):
    def forward(self, x):
        y = self.conv(x)
        return self.relu(self.bn(y)) + y


class WritesToItsInput(Plain):
    def forward(self, x):
        y = x
        y += self.bn(self.conv(x))
        return self.relu(y)


class WritesBetween(Plain):
    def forward(self, x):
        y = self.bn(self.conv(x))
        return y + functional.relu_(x)


class AsksTorch(Plain):
    def forward(self, x):
        y = self.bn(self.conv(x))
        return self.relu(y) if is_grad_enabled() else y


class WritesElsewhere(Plain):
    def forward(self, x):
        y = x
        y *= 2
        return self.relu(self.bn(self.conv(x)))


class Inherited(Block):
    def forward(self, x):
        return super().forward(x)


class TwoInputs(Plain):
    def forward(self, x, y=None):
        return self.relu(self.bn(self.conv(x)))


@pytest.mark.parametrize(
    "kind",
    [
        Branching,
        Flagged,
        ByChance,
        Counting,
        TwoReaders,
        Inherited,
        TwoInputs,
        WritesToItsInput,
        WritesBetween,
        AsksTorch,
        WritesElsewhere,
    ],
)
def test_code_that_may_do_something_else_next_time_is_left_alone(kind):
    assert follow(kind()) is None


def test_code_set_on_the_object_is_left_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert follow(model) is not None
    model.forward = lambda x: x
    assert follow(model) is None


def test_modules_that_are_built_alike_are_followed_once(monkeypatch):
    class Own(Block):
        forward = Block.forward

    follow(Own())
    monkeypatch.setattr(found_in_code, "_follow", None)  # nothing may be followed from here on
    assert follow(Own()) is not None
    twin = Own()
    twin.conv1.padding_mode = "reflect"
    assert follow(twin) is None  # kernels do not know this padding


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_chains_of_any_geometry_give_what_layers_give(fastest, seed):
    fastest(random.Random(seed).choice(["torch", "dense", "kept"]), "fused")
    chance = random.Random(1000 + seed)
    inside, outside = chance.randint(1, 40), chance.randint(1, 40)
    kernel, stride, padding = chance.choice([1, 2, 3, 5]), chance.choice([1, 1, 2, 3]), chance.randint(0, 2)
    torch.manual_seed(seed)
    conv = nn.Conv2d(inside, outside, kernel, stride, padding, bias=chance.random() < 0.5)
    layers = [conv, nn.BatchNorm2d(outside), nn.ReLU()]
    model = nn.Sequential(*layers[: chance.choice([2, 3])]).double()
    masks, twin = pruned(model, chance.choice([0.2, 0.9])), copy.deepcopy(model)
    size = chance.randint(2, 9), inside, chance.randint(5, 40), chance.randint(5, 40)
    x = torch.randn(size, dtype=torch.float64)
    if chance.random() < 0.5:
        x = x.to(memory_format=torch.channels_last)
    mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    with ntksap.sparse_kernels(model, masks):
        found = model(mine)
        found.square().sum().backward()
        with torch.no_grad():
            evaluated = model.eval()(mine)
    expected = twin(theirs)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(evaluated, twin.eval()(theirs).detach())
    kept = masks["0.weight"]
    torch.testing.assert_close(model[0].weight.grad * kept, twin[0].weight.grad * kept)
