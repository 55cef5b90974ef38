"""Random geometries of all kernels against torch in float64; a program of its own, as a bad one may end the process.

``python -m tests.campaigns.geometries COUNT [SEED]`` does COUNT of each kind, prints their counts and each difference,
and ends with status 1 if there was one.
"""

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ntksap.net.batch_norm import batch_norm
from ntksap.net.kernels import by_kept_weights, native_layers, winograd
from ntksap.net.kernels import conv2d as masked_conv2d
from ntksap.net.kernels.compiler import library
from ntksap.net.kernels.sparse_conv import sparse_conv2d

LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}
EXACT = {torch.float64: 1e-9, torch.float32: 2e-5}
"""How far a result may be from the exact one, as a share of their norm."""

Pairs = Iterator[tuple[str, Tensor, Tensor]]
"""What is compared: a name, what we found, and what torch found in float64."""


class Case:
    """One draw: layout, type, threads, and tensors of them. What is drawn is remembered, for the report."""

    def __init__(self, seed: int) -> None:
        self.random, self.drawn = random.Random(seed), {"seed": seed}
        torch.manual_seed(seed)
        self.layout = LAYOUTS[self.draw("layout", list(LAYOUTS))]
        self.dtype = self.draw("dtype", list(EXACT))
        torch.set_num_threads(self.draw("threads", [1, 2]))

    def draw(self, name: str, values: Any) -> Any:
        self.drawn[name] = self.random.choice(values)
        return self.drawn[name]

    def pair(self, name: str, values: Any) -> tuple[int, int]:
        return self.draw(f"{name}_y", values), self.draw(f"{name}_x", values)

    def tensor(self, *shape: int) -> Tensor:
        made = torch.randn(shape, dtype=torch.float64).to(self.dtype)
        return (made.contiguous(memory_format=self.layout) if len(shape) == 4 else made).requires_grad_()


def exact(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().contiguous().requires_grad_() for tensor in tensors]


def convolution(case: Case, thin: bool) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Images, weights and the geometry of a convolution; thin: a 1×1 convolution with a stride and few channels."""
    groups = case.draw("groups", [1] if thin else [1, 1, 1, 2, 3])
    kernel = (1, 1) if thin else case.pair("kernel", range(1, 6))
    stride = case.pair("stride", range(1, 5))
    dilation, padding = case.pair("dilation", [1, 1, 2, 3]), (0, 0) if thin else case.pair("padding", range(4))
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, low) + case.draw(f"size_{i}", range(20)) for i, low in enumerate(least)]
    channels = groups * case.draw("channels", range(1, 10))
    outputs = groups * case.draw("outputs", range(1, 10))
    x = case.tensor(case.draw("images", range(1, 13)), channels, *size)
    weight = case.tensor(outputs, channels // groups, *kernel)
    return x, weight, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def sparse(case: Case) -> Pairs:
    x, weight, how = convolution(case, thin=case.draw("thin", [False, False, True]))
    kept = torch.rand(weight.shape) < case.draw("density", [0.0, 0.05, 0.3, 0.7, 1.0])
    with torch.no_grad():
        weight.mul_(kept)
    twin_x, twin_weight = exact(x, weight)
    expected = functional.conv2d(twin_x, twin_weight, **how)
    g = torch.randn_like(expected).to(case.dtype)
    by_x, by_weight = torch.autograd.grad(expected, (twin_x, twin_weight), g.double())
    for name, function in (("kept", sparse_conv2d), ("chosen", masked_conv2d)):
        y = function(x, weight, kept, **how)
        found = torch.autograd.grad(y, (x, weight), g)
        yield f"{name} y", y, expected
        yield f"{name} by x", found[0], by_x
        yield f"{name} by weight", found[1] * kept, by_weight * kept
    rows = by_kept_weights(x[:1].detach(), g[:1], kept, **how)
    if rows is not None:
        one = functional.conv2d(twin_x[:1], twin_weight, **how)
        yield "row", rows[0], torch.autograd.grad(one, twin_weight, g[:1].double())[0][kept]


def dense(case: Case, thin: bool = False) -> Pairs:
    x, weight, how = convolution(case, thin)
    layer = nn.Conv2d(weight.shape[1] * how["groups"], len(weight), weight.shape[2:], bias=False, **how)
    layer.weight = nn.Parameter(weight.detach())
    twin_x, twin_weight = exact(x, weight)
    v_x, v_weight = torch.randn_like(twin_x).to(case.dtype), torch.randn_like(twin_weight).to(case.dtype)

    def derivatives(function: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> list[Tensor]:
        y = function(x)
        first = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        inner = (first[0] * v_x.to(x.dtype)).sum() + (first[1] * v_weight.to(x.dtype)).sum()
        return [y, *first, *torch.autograd.grad(inner, (x, weight))]

    with native_layers(layer, {}):
        found = derivatives(layer, x, layer.weight)
    expected = derivatives(lambda x: functional.conv2d(x, twin_weight, **how), twin_x, twin_weight)
    names = ("y", "by x", "by weight", "twice by x", "twice by weight")
    yield from zip(names, found, expected, strict=True)


def thin(case: Case) -> Pairs:
    return dense(case, thin=True)


def tiles(case: Case) -> Pairs:
    """The kernels of `ntksap.net.kernels.winograd`."""
    padding = case.pair("padding", range(3))
    size = [max(1, 3 - 2 * pad) + case.draw(f"size_{i}", range(18)) for i, pad in enumerate(padding)]
    channels, outputs = (case.draw(name, range(1, 97)) for name in ("channels", "outputs"))
    x = case.tensor(case.draw("images", range(1, 10)), channels, *size)
    weight = case.tensor(outputs, channels, 3, 3)
    twin_x, twin_weight = exact(x, weight)
    expected = functional.conv2d(twin_x, twin_weight, padding=padding)
    g = torch.randn_like(expected).to(case.dtype)
    by_x, by_weight = torch.autograd.grad(expected, (twin_x, twin_weight), g.double())
    x, weight = x.detach(), weight.detach()
    yield "y", winograd.conv(x, weight, padding), expected
    yield "by x", winograd.back(g, weight, padding), by_x
    yield "by weight", winograd.by_weight(x, g, weight, padding), by_weight


def norm(case: Case) -> Pairs:
    channels = case.draw("channels", range(1, 40))
    size = case.pair("size", range(1, 12))
    x = case.tensor(case.draw("images", range(3, 40)), channels, *size)
    with torch.no_grad():
        x.mul_(3).add_(case.draw("mean", [0, 1, -20]))
    affine = case.draw("affine", [True, False])
    layer = nn.BatchNorm2d(channels, affine=affine).to(case.dtype).train()
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    twin = nn.BatchNorm2d(channels, affine=affine).double().train()
    twin.load_state_dict(layer.state_dict())
    (twin_x,) = exact(x)
    v, u = torch.randn(x.shape).to(case.dtype), torch.randn(x.shape).to(case.dtype)
    expected = twin(twin_x)
    wanted = [twin_x, *twin.parameters()]
    first = torch.autograd.grad(expected, wanted, v.double(), create_graph=True)
    (second,) = torch.autograd.grad(first[0], twin_x, u.double())
    with native_layers(layer, {}):
        y = layer(x)
        found = torch.autograd.grad(y, [x, *layer.parameters()], v)
    yield "y", y, expected
    yield from zip(("by x", "by weight", "by bias"), found, first, strict=False)
    yield "running mean", layer.running_mean, twin.running_mean
    yield "running variance", layer.running_var, twin.running_var
    constants = [None, None] if not affine else [p.detach() for p in layer.parameters()]
    y = batch_norm(x, *constants, layer.eps)
    (by_x,) = torch.autograd.grad(y, x, v, create_graph=True)
    yield "twice by x", torch.autograd.grad(by_x, x, u)[0], second


KINDS: dict[str, Callable[[Case], Pairs]] = {
    "kept weights": sparse,
    "dense convolution": dense,
    "thin 1×1 convolution with a stride": thin,
    "3×3 convolution in tiles": tiles,
    "batch norm": norm,
}


def differences(kind: str, seed: int) -> Iterator[str]:
    case = Case(seed)
    for name, found, expected in KINDS[kind](case):
        # An absolute part too: derivatives of a few numbers through batch norm nearly cancel.
        off = float((found.detach().double() - expected.detach()).norm())
        if not off <= EXACT[case.dtype] * (float(expected.detach().norm()) + expected.numel() ** 0.5):
            yield f"{kind}, {name}: off by {off:.3g} of {float(expected.detach().norm()):.3g}: {case.drawn}"


def main(count: int, start: int = 0) -> int:
    assert library() is not None, "no kernels here"
    bad = []
    for kind in KINDS:
        for seed in range(start, start + count):
            bad.extend(differences(kind, seed))
        print(f"{count} geometries of {kind}", flush=True)
    print(f"{count * len(KINDS)} geometries, {len(bad)} differences", *bad, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
