"""DPaI on a small residual network beside its formulas: hooks on an ordinary module, plain loops, float64."""

import math

import torch
from torch import nn

import ntksap
from ntksap._base import generator_of

STEPS, LR, ALPHA, BETA = 240, 0.02, 0.99, 0.5


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.act = activation()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        return self.act(self.short(x) + self.norms[1](self.two(self.act(self.norms[0](self.one(x))))))


def resnet(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), activation(), Block(8, 8, 1, activation),
        Block(8, 12, 2, activation), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def by_hand(quota: dict[str, int]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the masks before the first and after the last step.

    A new BatchNorm in evaluation mode is the identity, but for its ε. ReLU is not, where a signal is 0.
    """
    module = resnet(nn.Identity).double().eval()
    layers = {f"{name}.weight": m for name, m in module.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    nn.init.zeros_(module[-1].bias)
    logs = []

    def divide(layer, args):
        largest = args[0].max()
        if largest == 0:
            return args
        logs.append(largest.log())
        return (args[0] / largest,)

    for layer in layers.values():
        layer.register_forward_pre_hook(divide)
    score = {
        name: torch.randn(layer.weight.shape, generator=generator_of(0, 1, "score", name), dtype=torch.float64)
        for name, layer in layers.items()
    }
    mean, square = ({name: torch.zeros_like(s) for name, s in score.items()} for _ in range(2))

    def masks():
        found = {}
        for name, s in score.items():
            found[name] = torch.zeros(s.numel(), dtype=torch.bool)
            found[name][s.abs().flatten().topk(quota[name]).indices] = True
            found[name] = found[name].view(s.shape)
        return found

    first = masks()
    for step in range(STEPS):
        logs.clear()
        module.zero_grad()
        kept = masks()
        with torch.no_grad():
            for name, layer in layers.items():
                layer.weight.copy_(kept[name])
        paths = module(torch.ones(1, 3, 8, 8, dtype=torch.float64)).sum()
        (paths.log() + sum(logs) if paths > 0 else paths).backward()
        rate = LR * (0.25 if step >= 3 * STEPS / 4 else 0.5 if step >= STEPS / 2 else 1)
        for name, layer in layers.items():
            g, mask = layer.weight.grad, kept[name]
            ascent = torch.zeros_like(g)
            for o in range(len(g)):
                unit_dead = not ((g[o] != 0) & mask[o]).any()
                for i in range(g.shape[1]):
                    kernel_dead = not ((g[o, i] != 0) & mask[o, i]).any()
                    ascent[o, i] = g[o, i] * ((1 - ALPHA) + ALPHA * ((1 - BETA) * unit_dead + BETA * kernel_dead))
            down = -score[name].sign() * ascent
            mean[name] = 0.9 * mean[name] + 0.1 * down
            square[name] = 0.999 * square[name] + 0.001 * down**2
            slope, size = mean[name] / (1 - 0.9 ** (step + 1)), square[name] / (1 - 0.999 ** (step + 1))
            score[name] = score[name] - rate * slope / (size.sqrt() + 1e-8)
    return first, masks()


def test_the_same_scores_lead_to_the_same_mask_of_a_residual_network():
    plan = ntksap.allocate(resnet(), 0.95, "erk")
    first, last = by_hand(dict(plan))
    masks = ntksap.prune(resnet(), 0.95, "dpai", input_shape=(3, 8, 8), rounds=3, round_steps=STEPS // 3, prune_lr=LR)
    assert math.isfinite(masks.info["objective"])
    assert all(torch.equal(masks[name], mask) for name, mask in last.items())
    moved = sum(int((first[name] & ~mask).sum()) for name, mask in last.items())
    assert moved > 0.1 * masks.kept  # it is a long way from where it began
