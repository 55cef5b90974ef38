"""Kinds of modules that real models are made of, each at a size that takes milliseconds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Make = Callable[[], nn.Module]
Inputs = Callable[[int, torch.Generator], Any]


def normal(*shape: int) -> Inputs:
    return lambda batch, generator: torch.randn(batch, *shape, generator=generator)


def tokens(batch: int, generator: torch.Generator) -> Tensor:
    return torch.randint(9, (batch, 5), generator=generator)


@dataclass(frozen=True)
class Kind:
    """A module, what it is called with, and the jobs (methods and the like) that must refuse it with a sentence."""

    name: str
    make: Make
    inputs: Inputs
    refused: frozenset[str] = frozenset()
    settings: dict[str, Any] = field(default_factory=dict)

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()


class Forward(nn.Module):
    """A forward pass of one's own over some parts."""

    def __init__(self, forward: Callable[..., Any], *parts: nn.Module, **parameters: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))
        self.own = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.own(self, *args, **kwargs)


def over(forward: Callable[..., Any], *parts: Make, **parameters: tuple[int, ...]) -> Make:
    """A module with ``forward(self, x)`` over fresh parts."""
    return lambda: Forward(
        forward, *(part() for part in parts), **{n: 0.3 * torch.randn(shape) for n, shape in parameters.items()}
    )


def conv(inside: int = 2, outside: int = 6, size: int = 3, **settings: Any) -> Make:
    return lambda: nn.Conv2d(inside, outside, size, **{"padding": size // 2, **settings})


def dense(inside: int, outside: int) -> Make:
    return lambda: nn.Linear(inside, outside)


def chain(*parts: Make | nn.Module) -> Make:
    return lambda: nn.Sequential(*(part if isinstance(part, nn.Module) else part() for part in parts))


def head(inside: int = 6) -> list[Make]:
    return [lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, dense(inside, 3)]


def then(middle: Callable[[Tensor], Tensor], inside: int = 6) -> Make:
    """A convolution, a function of (n, 6, 6, 6) or what becomes of it, its mean over positions, a linear layer."""
    return over(lambda self, x: self.parts[1](middle(self.parts[0](x)).flatten(2).mean(2)), conv(), dense(inside, 3))


IMAGE = normal(2, 6, 6)
CLOSED = frozenset({"ntk-sap-analytic"})
LOGITS = frozenset({"random-erk-logits"})
"""Its allocation evaluates the module without values."""


def windows(self: Forward, x: Tensor) -> Tensor:
    """Shifted windows with a mask of −100 that is made from the input's shape, as in torchvision's Swin."""
    y = torch.roll(self.parts[0](x).permute(0, 2, 3, 1), shifts=(-1, -1), dims=(1, 2))
    regions = y.new_zeros((6, 6))
    for i, rows in enumerate((slice(0, 3), slice(3, 5), slice(5, 6))):
        for j, columns in enumerate((slice(0, 3), slice(3, 5), slice(5, 6))):
            regions[rows, columns] = 3 * i + j
    flat = regions.view(2, 3, 2, 3).permute(0, 2, 1, 3).reshape(4, 9)
    apart = flat.unsqueeze(1) - flat.unsqueeze(2)
    apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
    cut = y.view(-1, 2, 3, 2, 3, 6).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 9, 6)
    q, k, v = self.parts[1](cut).chunk(3, dim=-1)
    shares = F.softmax(torch.einsum("nwid,nwjd->nwij", q, k) / 6**0.5 + apart, dim=-1)
    return self.parts[2]((shares @ v).mean(dim=(1, 2)))


def cosine_attention(self: Forward, x: Tensor) -> Tensor:
    """Of normalised queries and keys with a learnt, clamped scale, as in Swin v2."""
    q, k, v = self.parts[0](x).chunk(3, -1)
    scale = torch.clamp(self.scale, max=4.6).exp()
    logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * scale
    return self.parts[1]((logits.softmax(-1) @ v).mean(1))


def inception(self: Forward, x: Tensor) -> Tensor:
    """Branches with keyword pooling, joined by ``torch.cat(tensors=…)``, after channels are rescaled one by one."""
    x = torch.cat(tensors=[torch.unsqueeze(x[:, i], 1) * 0.9 + 0.1 for i in range(2)], dim=1)
    branches = [self.parts[0](x), self.parts[1](F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))]
    return self.parts[2](F.relu(torch.cat(tensors=branches, dim=1), inplace=True).mean(dim=(2, 3)))


def top_two(self: Forward, x: Tensor) -> Tensor:
    """A mixture whose tokens go to two of four experts, chosen by value."""
    shares, chosen = F.softmax(self.parts[0](x), dim=-1).topk(2, dim=-1)
    outputs = torch.stack([expert(x) for expert in self.parts[1:5]], 1)
    picked = outputs.gather(1, chosen.unsqueeze(-1).expand(-1, -1, outputs.shape[-1]))
    return self.parts[5]((picked * shares.unsqueeze(-1)).sum(1))


class Experts(nn.Module):
    """Stacked experts, all of which see every input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(0.4 * torch.randn(3, 8, 5)), nn.Parameter(0.4 * torch.randn(3, 5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(torch.relu(torch.matmul(x, self.up.mT)), self.down.mT).mean(0)


def messages(self: Forward, nodes: Tensor, edges: Tensor) -> Tensor:
    for layer in self.parts:
        sent = layer(nodes)
        nodes = torch.relu(sent.index_add(0, edges[1], sent[edges[0]]))
    return nodes


def scattered(self: Forward, nodes: Tensor, edges: Tensor) -> Tensor:
    sent = torch.relu(self.parts[0](nodes))[edges[0]]
    into = edges[1].unsqueeze(-1).expand_as(sent)
    return self.parts[1](torch.zeros_like(nodes[:, :1].expand(-1, 8)).scatter_add(0, into, sent))


def graph(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(11, 5, generator=generator), torch.randint(11, (2, 20), generator=generator)


class Again(torch.autograd.Function):
    """Calls a layer again in the backward pass, as reversible networks do."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, x: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        result: Tensor = layer(x)
        return result

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.layer(x), x, g[0])


def each_step(self: Forward, x: Tensor) -> Tensor:
    hidden = cell = x.new_zeros(len(x), 8)
    for step in x.unbind(1):
        hidden, cell = self.parts[0](step, (hidden, cell))
    return self.parts[1](hidden)


def rms_by_hand(self: Forward, x: Tensor) -> Tensor:
    y = self.parts[0](x)
    return self.parts[1](y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain)


def layer_norm_by_hand(self: Forward, x: Tensor) -> Tensor:
    y = self.parts[0](x)
    spread = y.var(dim=-1, keepdim=True, unbiased=False)
    return self.parts[1]((y - y.mean(-1, keepdim=True)) / torch.sqrt(spread + 1e-5))


def causal(self: Forward, x: Tensor) -> Tensor:
    q, k, v = self.parts[0](x).chunk(3, dim=-1)
    logits = q @ k.transpose(-2, -1)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    logits = logits.masked_fill(mask, torch.finfo(logits.dtype).min)
    return self.parts[1](torch.where(mask[0][:, None], logits.softmax(-1) @ v, v))


EMPTY_ROWS = frozenset({"iterative-snip", "force", "ntk-sap", "ntk-sap-s"})
"""Under weight_norm a row that loses all its weights is 0/0."""
RECOMPUTES = frozenset({
    "snip", "iterative-snip", "force", "grasp", "synflow", "px", "ntk-sap", "ntk-sap-s", "ntt", "prospr", "mag-1epoch",
    "hutchinson", "dpai",
    "ntk", "diagnose", "twin of snip", "twin of synflow", "twin of ntk-sap",
})  # fmt: skip


def checkpointed(reentrant: bool) -> Make:
    from torch.utils.checkpoint import checkpoint

    def forward(self: Forward, x: Tensor) -> Tensor:
        y = torch.relu(self.parts[0](x))
        return self.parts[2](checkpoint(lambda z: torch.tanh(self.parts[1](z)), y, use_reentrant=reentrant))

    return over(forward, dense(5, 8), dense(8, 8), dense(8, 3))


def parametrized(wrap: Callable[[nn.Module], nn.Module]) -> Make:
    return chain(dense(5, 8), nn.ReLU, lambda: wrap(nn.Linear(8, 8)), nn.ReLU, dense(8, 3))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def in_dtype(dtype: torch.dtype) -> Make:
    return lambda: chain(conv(), lambda: nn.BatchNorm2d(6), nn.ReLU, *head())().to(dtype)


def bag() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(9, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


old = nn.utils
new = nn.utils.parametrizations
SEQUENCE = normal(5, 4)
VECTOR = normal(5)

KINDS = [
    Kind("linear", chain(dense(5, 8), nn.ReLU, dense(8, 3)), VECTOR),
    Kind("conv, BatchNorm", chain(conv(), lambda: nn.BatchNorm2d(6), nn.ReLU, *head()), IMAGE),
    Kind(
        "BatchNorm without statistics",
        chain(conv(), lambda: nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU, *head()),
        IMAGE,
        frozenset({"ntt"}),
    ),
    Kind("InstanceNorm", chain(conv(), lambda: nn.InstanceNorm2d(6, affine=True), nn.ReLU, *head()), IMAGE),
    Kind("instance_norm", then(lambda y: F.relu(F.instance_norm(y))), IMAGE),
    Kind("GroupNorm", chain(conv(), lambda: nn.GroupNorm(2, 6), nn.SiLU, *head()), IMAGE),
    Kind("LocalResponseNorm", chain(conv(), lambda: nn.LocalResponseNorm(2), nn.ReLU, *head()), IMAGE, CLOSED),
    Kind("RMSNorm by hand", over(rms_by_hand, dense(5, 8), dense(8, 3), gain=(8,)), VECTOR),
    Kind("LayerNorm by hand", over(layer_norm_by_hand, dense(5, 8), dense(8, 3)), VECTOR, frozenset({"px", "dpai"})),
    Kind("groups and dilation", chain(conv(groups=2, dilation=2, padding=2), nn.ELU, *head()), IMAGE),
    Kind("reflection", chain(conv(padding_mode="reflect"), nn.Hardswish, *head()), IMAGE),
    Kind("same padding", chain(conv(padding="same"), nn.Mish, *head()), IMAGE),
    Kind("transposed conv", chain(lambda: nn.ConvTranspose2d(2, 6, 3, stride=2), nn.ReLU, *head()), IMAGE),
    Kind(
        "conv 1d",
        chain(lambda: nn.Conv1d(5, 6, 3), nn.LeakyReLU, lambda: nn.MaxPool1d(2), nn.Flatten, dense(6, 3)),
        SEQUENCE,
    ),
    Kind(
        "conv 3d",
        chain(lambda: nn.Conv3d(1, 4, 2), nn.ReLU, lambda: nn.AvgPool3d(2), nn.Flatten, dense(4, 3)),
        normal(1, 3, 3, 3),
    ),
    Kind("PReLU", chain(conv(), nn.PReLU, *head()), IMAGE),
    Kind("GLU", chain(dense(5, 16), nn.GLU, dense(8, 3)), VECTOR),
    Kind("bilinear", over(lambda self, x: self.parts[0](x, x), lambda: nn.Bilinear(5, 5, 3)), VECTOR, CLOSED),
    Kind("inception", over(inception, conv(2, 3), conv(2, 3), dense(6, 3)), IMAGE),
    Kind("average pooling by keyword", then(lambda y: F.avg_pool2d(y, kernel_size=3)), IMAGE),
    Kind("maximum pooling by keyword", then(lambda y: F.max_pool2d(input=y, kernel_size=2, stride=2)), IMAGE),
    Kind("normalize by keyword", then(lambda y: F.normalize(y, dim=1)), IMAGE),
    Kind("unfold", then(lambda y: F.unfold(y, kernel_size=2, stride=2), 24), IMAGE),
    Kind("fold", then(lambda y: F.fold(F.unfold(y, 2), (6, 6), 2)), IMAGE, CLOSED),
    Kind("interpolate", then(lambda y: F.interpolate(y, scale_factor=2, mode="bilinear")), IMAGE),
    Kind("pixel shuffle", then(lambda y: F.pixel_unshuffle(y, 2), 24), IMAGE),
    Kind("where", then(lambda y: torch.where(torch.eye(6) > 0, y, 0.5 * y)), IMAGE),
    Kind("masked_fill", then(lambda y: y.masked_fill(torch.eye(6) > 0, 1.0)), IMAGE),
    Kind("a comparison of values", then(lambda y: y * (y > 0.1)), IMAGE, CLOSED),
    Kind("values decide", then(lambda y: y if float(y.sum()) > -1e9 else -y), IMAGE, CLOSED | LOGITS),
    Kind("cumulative sums", then(lambda y: y.cumsum(-1)), IMAGE, CLOSED),
    Kind("largest values", then(lambda y: y.amax(dim=-1, keepdim=True)), IMAGE, CLOSED),
    Kind("Fourier transform", then(lambda y: torch.fft.irfft(torch.fft.rfft(y), n=6)), IMAGE, CLOSED),
    Kind("noise in the forward pass", then(lambda y: y + 0.1 * torch.randn(y.shape[1:], dtype=y.dtype)), IMAGE),
    Kind("shifted windows", over(windows, conv(2, 6), dense(6, 18), dense(6, 3)), IMAGE),
    Kind("cosine attention", over(cosine_attention, dense(4, 18), dense(6, 3), scale=(1,)), SEQUENCE),
    Kind("causal attention", over(causal, dense(4, 18), dense(6, 3)), SEQUENCE),
    Kind(
        "MultiheadAttention",
        over(
            lambda self, x: self.parts[1](self.parts[0](x, x, x, need_weights=False)[0].mean(1)),
            lambda: nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True),
            dense(4, 3),
        ),
        SEQUENCE,
    ),
    Kind(
        "TransformerEncoder",
        chain(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten, dense(20, 3)),
        SEQUENCE,
    ),
    Kind(
        "LSTM",
        over(lambda self, x: self.parts[1](self.parts[0](x)[0][:, -1]), lambda: nn.LSTM(4, 6, 2, batch_first=True),
             dense(6, 3)),
        SEQUENCE,
    ),
    Kind(
        "GRU in both directions",
        over(lambda self, x: self.parts[1](self.parts[0](x)[0].mean(1)),
             lambda: nn.GRU(4, 6, bidirectional=True, batch_first=True), dense(12, 3)),
        SEQUENCE,
    ),
    Kind(
        "RNN over time first",
        over(lambda self, x: self.parts[1](self.parts[0](x)[0]), lambda: nn.RNN(4, 6), dense(6, 3)),
        SEQUENCE,
        frozenset({"ntt"}),
    ),
    Kind("LSTMCell", over(each_step, lambda: nn.LSTMCell(4, 8), dense(8, 3)), SEQUENCE),
    Kind(
        "embedding, tied head",
        over(lambda self, ids: F.linear(torch.tanh(self.parts[1](self.parts[0](ids).mean(1))), self.parts[0].weight),
             lambda: nn.Embedding(9, 6), dense(6, 6)),
        tokens,
    ),
    Kind("EmbeddingBag", bag, tokens, CLOSED | {"prospr", "ntt"}),
    Kind("checkpointing", checkpointed(False), VECTOR),
    Kind("checkpointing, reentrant", checkpointed(True), VECTOR),
    Kind(
        "recomputation of its own",
        over(lambda self, x: Again.apply(self.parts[1], torch.relu(self.parts[0](x))), dense(5, 8), dense(8, 3)),
        VECTOR,
        RECOMPUTES | CLOSED,
    ),
    Kind("weight_norm", parametrized(new.weight_norm), VECTOR),
    Kind("weight_norm, older", parametrized(old.weight_norm), VECTOR, LOGITS),
    Kind("weight_norm, pruned", parametrized(new.weight_norm), VECTOR,
         EMPTY_ROWS | {"dpai"},
         settings={"include": ["default", "*.original1"], "floor": 8}),
    Kind("spectral_norm", parametrized(new.spectral_norm), VECTOR, frozenset({"synflow"})),
    Kind("spectral_norm, older", parametrized(old.spectral_norm), VECTOR, LOGITS),
    Kind("orthogonal", parametrized(new.orthogonal), VECTOR),
    Kind(
        "parametrization of its own",
        parametrized(lambda layer: old.parametrize.register_parametrization(layer, "weight", Symmetric())),
        VECTOR,
    ),
    Kind("stacked experts", chain(dense(5, 5), Experts, dense(5, 3)), VECTOR),
    Kind("experts chosen by value", over(top_two, dense(5, 4), *[dense(5, 6)] * 4, dense(6, 3)), VECTOR, CLOSED),
    Kind("graph", over(messages, dense(5, 8), dense(8, 3)), graph, frozenset({"ntt"})),
    Kind("graph by scatter_add", over(scattered, dense(5, 8), dense(8, 3)), graph, frozenset({"ntt"})),
    Kind("float16", in_dtype(torch.float16), IMAGE),
    Kind("bfloat16", in_dtype(torch.bfloat16), IMAGE),
    Kind("float64", in_dtype(torch.float64), IMAGE),
    Kind(
        "a dictionary as output",
        over(lambda self, x: {"a": self.parts[0](x), "b": self.parts[1](x)}, dense(5, 3), dense(5, 2)),
        VECTOR,
        settings={"output": lambda y: y["b"]},
    ),
    Kind(
        "keyword arguments",
        over(lambda self, *, x, scale: self.parts[0](x) * scale, dense(5, 3)),
        lambda batch, generator: {"x": torch.randn(batch, 5, generator=generator), "scale": 2.0},
    ),
]  # fmt: skip
