"""Paths against graphs that are written out edge by edge and counted with whole numbers."""

import itertools
import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

import ntksap
from ntksap import InputError, Masks
from ntksap.analysis.diagnosis import diagnose
from ntksap.analysis.paths import log10_paths
from tests.cases import CASES

Node = tuple  # (layer, channel, row, column)


class Graph:
    """Nodes in layers, and for each node those that lead to it, as often as they do."""

    def __init__(self, channels: int, height: int = 1, width: int = 1) -> None:
        self.sources: dict[Node, list[Node]] = {}
        self.shape, self.layer = (channels, height, width), 0
        self.inputs = set(self.nodes())

    def nodes(self) -> list[Node]:
        return [(self.layer, *place) for place in itertools.product(*map(range, self.shape))]

    def grow(self, shape: tuple[int, int, int], sources) -> "Graph":
        """Add a layer; ``sources(channel, row, column)`` yields the places of this one that lead there."""
        before, self.layer, self.shape = self.layer, self.layer + 1, shape
        for node in self.nodes():
            self.sources[node] = [(before, *place) for place in sources(*node[1:])]
        return self

    def conv(self, mask: torch.Tensor, stride: int = 1, padding: int = 0) -> "Graph":
        outputs, inputs, high, wide = mask.shape
        _, height, width = self.shape

        def sources(o, r, c):
            for i, y, x in itertools.product(range(inputs), range(high), range(wide)):
                row, column = r * stride + y - padding, c * stride + x - padding
                if mask[o, i, y, x] and 0 <= row < height and 0 <= column < width:
                    yield i, row, column

        sizes = [(size + 2 * padding - k) // stride + 1 for size, k in ((height, high), (width, wide))]
        return self.grow((outputs, *sizes), sources)

    def pool(self, size: int) -> "Graph":
        channels, height, width = self.shape

        def sources(o, r, c):
            for y, x in itertools.product(range(size), range(size)):
                yield o, r * size + y, c * size + x

        return self.grow((channels, height // size, width // size), sources)

    def linear(self, mask: torch.Tensor) -> "Graph":
        _, height, width = self.shape

        def sources(o, r, c):
            for i in range(mask.shape[1]):
                if mask[o, i]:
                    yield i // (height * width), i // width % height, i % width

        return self.grow((len(mask), 1, 1), sources)

    def add(self, layer: int) -> None:
        """Let the nodes of an earlier layer lead on beside those of this one."""
        before = self.layer
        self.grow(self.shape, lambda o, r, c: [(o, r, c)])
        for node in self.nodes():
            self.sources[node].append((layer, *node[1:]))
        assert before < self.layer

    def paths(self) -> int:
        @cache
        def to(node: Node) -> int:
            return 1 if node in self.inputs else sum(to(source) for source in self.sources[node])

        return sum(to(node) for node in self.nodes())


def drawn(module: nn.Module, density: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: p for name, p in module.named_parameters() if p.dim() > 1}
    return {name: torch.rand(p.shape, generator=generator) < density for name, p in weights.items()}


def check(module, masks, graph, **source):
    expected = graph.paths()
    found = log10_paths(module, masks, **source)
    assert found == (pytest.approx(math.log10(expected), abs=1e-11) if expected else -math.inf)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("density", [0.1, 0.3, 0.8])
def test_a_chain_of_linear_layers(density, seed):
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))
    masks = drawn(module, density, seed)
    check(
        module,
        masks,
        Graph(4).linear(masks["0.weight"]).linear(masks["3.weight"]).linear(masks["5.weight"]),
        input_shape=(4,),
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pooling", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3)])
def test_a_convolutional_network(pooling, seed):
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), pooling,
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    masks = drawn(module, 0.3, seed)
    graph = Graph(2, 6, 6).conv(masks["0.weight"], padding=1).pool(2)
    graph.conv(masks["4.weight"], stride=2, padding=1).linear(masks["7.weight"])
    check(module, masks, graph, input_shape=(2, 6, 6))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.one = nn.Conv2d(4, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = functional.relu(self.stem(x))
        x += self.two(self.one(x).relu_()) * 0.5  # a constant factor is no path
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("density", [0.05, 0.4])
def test_a_residual_network(density):
    module = Residual()
    masks = drawn(module, density, 0)
    graph = Graph(2, 4, 4).conv(masks["stem.weight"], padding=1)
    shortcut = graph.layer
    graph.conv(masks["one.weight"], padding=1).conv(masks["two.weight"], padding=1).add(shortcut)
    graph.pool(4).linear(masks["head.weight"])
    check(module, masks, graph, input_shape=(2, 4, 4))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_network_has_paths_and_with_nothing_left_none(case):
    module = case.module()
    ones = ntksap.prune(module, 0.0, "random", **case.source())
    assert log10_paths(module, ones, **case.source()) > 0
    nothing = {name: torch.zeros_like(mask) for name, mask in ones.items()}
    assert log10_paths(module, nothing, **case.source()) == -math.inf


def test_no_network_is_too_deep():
    deep = nn.Sequential(*(nn.Linear(50, 50) for _ in range(300)))
    ones = ntksap.prune(deep, 0.0, "random")
    assert log10_paths(deep, ones, input_shape=(50,)) == pytest.approx(301 * math.log10(50), rel=1e-12)


def test_attention_counts_a_query_a_key_and_a_value_where_they_may_meet():
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(2, 6, bias=False)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    module = Causal()
    ones = Masks.ones(dict(module.named_parameters()))
    # 1 + 2 + 3 pairs of positions; each query, key and value entry has 2 paths; logits sum over 2 entries
    assert 10 ** log10_paths(module, ones, input_shape=(3, 2)) == pytest.approx(6 * (2 * 2 * 2) * 2 * 2)


MASKS = {
    "causal": {"attn_mask": torch.ones(3, 3, dtype=torch.bool).triu(1)},
    "causal, hinted": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(3), "is_causal": True},
    "for each head": {"attn_mask": torch.eye(3, dtype=torch.bool).expand(2, 3, 3)},
    "padding": {"key_padding_mask": torch.tensor([[False, True, False]])},
    "both": {
        "attn_mask": torch.ones(3, 3, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.tensor([[True, False, False]]),
    },
}
ALLOWED = {
    "causal": torch.ones(3, 3).tril(),
    "causal, hinted": torch.ones(3, 3).tril(),
    "for each head": 1 - torch.eye(3),
    "padding": torch.tensor([[1.0, 0, 1]]).expand(3, 3),
    "both": torch.ones(3, 3).tril() * torch.tensor([0.0, 1, 1]),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("need_weights", [False, True])
def test_masks_of_multi_head_attention_are_obeyed(name, need_weights):
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, bias=False, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=need_weights, **MASKS[name])[0]

    module = Masked()
    masks = drawn(module, 0.8, 0)
    q, k, v = (torch.ones(1, 3, 4) @ w.float().T for w in masks["attention.in_proj_weight"].chunk(3))
    heads = [((q[..., part] @ k[..., part].mT) * ALLOWED[name]) @ v[..., part] for part in (slice(0, 2), slice(2, 4))]
    expected = (torch.cat(heads, -1) @ masks["attention.out_proj.weight"].float().T).sum()
    assert 10 ** log10_paths(module, masks, input_shape=(3, 4)) == pytest.approx(float(expected))


def test_keys_that_come_from_no_input_are_refused():
    class WithBias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    module = WithBias()
    with pytest.raises(InputError, match="with add_bias_kv"):
        log10_paths(module, drawn(module, 0.8, 0), input_shape=(3, 4))


def test_norms_and_activations_of_ones_own_are_identities_too():
    class OwnRMSNorm(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    class NewGELUActivation(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1.0 + torch.tanh(x + 0.044 * torch.pow(x, 3.0)))

    layers = nn.Linear(4, 6), nn.Linear(6, 3)
    own, plain = nn.Sequential(layers[0], OwnRMSNorm(), NewGELUActivation(), layers[1]), nn.Sequential(*layers)
    masks = drawn(plain, 0.5, 0)
    of_own = {name.replace("1.", "3."): mask for name, mask in masks.items()}
    assert log10_paths(own, of_own, input_shape=(4,)) == log10_paths(plain, masks, input_shape=(4,))


def test_a_norm_that_adds_two_signals_is_more_than_the_identity():
    class AddNorm(nn.Module):
        def forward(self, x, y):
            return x + y

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch, self.norm = nn.Linear(4, 4, bias=False), AddNorm()

        def forward(self, x):
            return self.norm(x, y=self.branch(x))

    module = Residual()
    masks = drawn(module, 0.5, 0)
    expected = 4 + int(masks["branch.weight"].sum())
    assert 10 ** log10_paths(module, masks, input_shape=(4,)) == pytest.approx(expected)


def test_a_module_that_only_moves_pixels_is_no_activation():
    layers = nn.Sequential(nn.PixelUnshuffle(4), nn.Conv2d(16, 4, 1, bias=False), nn.PixelShuffle(2))
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in layers.named_parameters()}
    assert 10 ** log10_paths(layers, masks, input_shape=(1, 8, 8)) == pytest.approx(
        2 * 2 * 16 * 4
    )  # places, inputs, outputs


def test_what_paths_cannot_be_followed_through_is_said():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.body(x)[0][:, -1])

    module = Recurrent()
    ones = ntksap.prune(module, 0.0, "random")
    with pytest.raises(InputError, match="lstm"):
        log10_paths(module, ones, input_shape=(5, 3))
    found = diagnose(module, ones, input_shape=(5, 3))
    assert "Paths from input to output are not counted" in " ".join(found.sentences())


def test_units_and_kernels_on_paths_are_counted():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2, 1))
    masks = {name: torch.zeros(p.shape, dtype=torch.bool) for name, p in module.named_parameters() if p.dim() > 1}
    masks["0.weight"][0, 0, 1, 1] = masks["0.weight"][0, 0, 2, 2] = True  # one kernel, two weights
    masks["0.weight"][1, 1, 0, 0] = True  # unit 1 leads nowhere
    masks["2.weight"][0, 0, 1, 1] = True
    masks["2.weight"][1, 2, 1, 1] = True  # unit 2 hears nothing
    masks["4.weight"][0] = True
    found = diagnose(module, masks, input_shape=(2, 5, 5))
    assert [(one.live_channels, one.live_kernels, one.kernels) for one in found.layers] == [
        (1, 1, 6),
        (1, 1, 6),
        (1, 1, 2),
    ]
    assert found.units == (3, 6)
    assert found.kernels == (3, 14)
    assert 10**found.log10_paths == pytest.approx(2)
    assert "10^0.3 paths lead from input to output, through 3 of 6 channels and 3 of 14 kernels" in " ".join(
        found.sentences()
    )
