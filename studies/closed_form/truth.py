"""The closed-form trace of small masked nets against the mean over weight draws: the table of errors on the page.

    python -m studies.closed_form.truth [draws] [net …]

Per draw: weights from the initialiser, 32 noise inputs, BatchNorm's statistics for these, held constant, and ‖J(Δ⊙m)‖²
for one perturbation Δ ~ N(0, 1), whose mean over Δ is the trace.
"""

import math
import sys

import torch
from torch import Tensor, nn
from torch.func import jvp

from ntksap.methods.ntk_sap_analytic import expected_trace
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe

INPUTS = 32


class Block(nn.Module):
    """Two convolutions beside the identity; BatchNorm, and a ReLU after the sum, where asked for."""

    def __init__(self, channels: int, norm: bool, relu_behind: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(*conv(channels, channels, norm), *conv(channels, channels, norm)[:-1])
        self.behind = nn.ReLU() if relu_behind else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → the same shape."""
        out: Tensor = self.behind(x + self.branch(x))
        return out


def conv(inside: int, outside: int, norm: bool) -> list[nn.Module]:
    """Return a convolution, BatchNorm if asked for, and a ReLU."""
    layer = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
    return [layer, *([nn.BatchNorm2d(outside)] if norm else []), nn.ReLU()]


def flat(size: int) -> list[nn.Module]:
    """Return a head that reads every position by itself."""
    return [nn.Flatten(), nn.Linear(size, 3, bias=False)]


def pooled(channels: int) -> list[nn.Module]:
    """Return a head after global average pooling."""
    return [nn.AdaptiveAvgPool2d(1), *flat(channels)]


def mlp(activation: nn.Module, norm: bool = False) -> list[nn.Module]:
    """Return three hidden layers of 32."""
    sizes = [(6, 32), (32, 32), (32, 32)]
    layers = [[nn.Linear(a, b, bias=False), *([nn.LayerNorm(b)] if norm else []), activation] for a, b in sizes]
    return [part for layer in layers for part in layer] + [nn.Linear(32, 3, bias=False)]


NETS: dict[str, list[nn.Module]] = {
    "ReLU, linear layers": mlp(nn.ReLU()),
    "ReLU, convolutions": [*conv(2, 16, False), *conv(16, 16, False), *flat(16 * 36)],
    "… residual, no ReLU after the sum": [
        *conv(2, 16, False),
        Block(16, False, False),
        Block(16, False, False),
        *flat(16 * 36),
    ],
    "… residual, ReLU after the sum": [
        *conv(2, 16, False),
        Block(16, False, True),
        Block(16, False, True),
        *flat(16 * 36),
    ],
    "… average pooling": [*conv(2, 16, False), *conv(16, 16, False), *conv(16, 16, False), *pooled(16)],
    "… max pooling": [*conv(2, 16, False), nn.MaxPool2d(2), *conv(16, 16, False), *flat(16 * 9)],
    "BatchNorm": [*conv(2, 16, True), *conv(16, 16, True), *conv(16, 16, True), *flat(16 * 36)],
    "… residual, average pooling": [*conv(2, 16, True), Block(16, True, True), Block(16, True, True), *pooled(16)],
    "… max pooling, average pooling": [*conv(2, 16, True), nn.MaxPool2d(2), *conv(16, 16, True), *pooled(16)],
    "LayerNorm, ReLU, linear layers": mlp(nn.ReLU(), norm=True),
    "GELU, linear layers": mlp(nn.GELU()),
    "tanh, linear layers": mlp(nn.Tanh()),
}


def compare(module: nn.Module, shape: tuple[int, ...], draws: int) -> tuple[float, float, float]:
    """Return the closed form, the mean over draws and its standard error, for a random mask of density 0.6."""
    net, generator = Net(module.double()), torch.Generator().manual_seed(7)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.6 for n in net.prunable}
    closed = float(expected_trace(net, masks, Probe.of(net, input_shape=shape))[0].detach())
    found = []
    for index in range(draws):
        drawn = net.draw(0, index)
        weights = {**drawn, **{n: drawn[n] * masks[n] for n in net.prunable}}
        inputs = torch.randn(INPUTS, *shape, generator=generator, dtype=torch.float64)
        statistics = net.statistics(weights, inputs)
        delta = {n: torch.zeros_like(w) for n, w in weights.items()}
        for n in net.prunable:
            delta[n] = torch.randn(weights[n].shape, generator=generator, dtype=torch.float64) * masks[n]
        _, slope = jvp(lambda w, z=inputs, s=statistics: net(w, z, norm=s), (weights,), (delta,))
        found.append(float(slope.square().sum()) / INPUTS)
    values = torch.tensor(found)
    return closed, float(values.mean()), float(values.std()) / math.sqrt(draws)


def main() -> None:
    """Print one line for each net."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for name, layers in NETS.items():
        if len(sys.argv) < 3 or name in sys.argv[2:]:
            torch.manual_seed(0)
            shape = (6,) if isinstance(layers[0], nn.Linear) else (2, 6, 6)
            closed, mean, error = compare(nn.Sequential(*layers), shape, draws)
            print(
                f"| {name} | {closed:.4g} | {mean:.4g} ± {error:.2g} | {100 * (closed / mean - 1):+.0f} % |", flush=True
            )


if __name__ == "__main__":
    main()
