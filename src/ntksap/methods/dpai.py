"""DPaI, differentiable pruning at initialisation by node–path balance (Xiang et al., ICLR 2025)."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ntksap._base import InputError
from ntksap.net import Net, WeightView
from ntksap.pruning import Masks, Probe, Selector, first_round

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # what torch's Adam keeps for each tensor
_IDENTITIES = {
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "prelu", "relu", "relu6",
    "rrelu", "selu", "sigmoid", "silu", "softplus", "tanh", "group_norm", "instance_norm", "layer_norm", "rms_norm",
}  # fmt: skip
_LAYERS = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip


def dpai(
    net: Net,
    probe: Probe,
    *,
    selector: Selector,
    invert: bool,
    after: Masks | None,
    round_steps: Annotated[int, "steps of Adam on the scores in each round"] = 150,
    prune_lr: Annotated[float, "learning rate while pruning"] = 5e-3,
    alpha: Annotated[float, "share of a step that goes to units and kernels without paths (α)"] = 0.99,
    beta: Annotated[float, "share of that which goes to kernels, the rest to units (β)"] = 0.5,
) -> Iterator[Masks]:
    """Choose the mask whose network has many paths from input to output, and many units and kernels on them.

    Scores s ~ N(0, 1); the mask m keeps the largest |s|, by default in the layers' ERK quotas. The derivative
    g = ∂log P/∂m is taken straight through the selection. Each step of Adam, whose rate is halved at ½ and ¾ of all
    steps, ascends along sign(s) times

        (1 − α)·g + α·[(1 − β)·g·1(unit dead) + β·g·1(kernel dead)].

    P is the sum of the outputs with m as the weights, an input of ones, no biases, and activations and norms as the
    identity, where the input x of each linear layer and convolution is divided by max x, and P multiplied by it.
    Without residual connections the two cancel: P is the number of paths. With them, a branch counts for what it adds
    to its shortcut after these divisions.

    An output of a layer is dead if no path enters it by way of that layer, a kernel if none goes through it.
    """
    rounds, steps = selector.rounds, selector.rounds * round_steps
    begin = first_round(rounds, after)
    if round_steps < 1 or prune_lr <= 0 or not 0 <= alpha <= 1 or not 0 <= beta <= 1:
        raise InputError("round_steps must be at least 1, prune_lr above 0, alpha and beta from 0 to 1")
    dtype = torch.float32 if net.device.type == "mps" else torch.float64
    scores = {name: _drawn(probe, name, net, dtype) for name in net.prunable}
    adam = torch.optim.Adam(scores.values(), prune_lr)
    if after:
        for name, tensor in scores.items():
            tensor.data.copy_(after.state[f"score/{name}"])
            if f"step/{name}" in after.state:
                adam.state[tensor] = {k: after.state[f"{k}/{name}"].to(tensor.device, copy=True) for k in _MOMENTS}

    def largest(round: int, sign: int = 1) -> Masks:
        return selector.masks({name: sign * tensor.detach().abs() for name, tensor in scores.items()}, round)

    for index in range(begin, rounds + 1):
        for step in range(round_steps * (index - 1), round_steps * index):
            kept = largest(index).to(net.device)
            _, slope = objective(net, kept, probe, dtype)
            adam.param_groups[0]["lr"] = prune_lr * 0.5 ** ((2 * step >= steps) + (4 * step >= 3 * steps))
            for name, tensor in scores.items():
                ascent = direction(slope[name], kept[name], selector.views[name], alpha, beta)
                tensor.grad = -tensor.detach().sign() * ascent
            adam.step()
        masks = largest(index, -1 if invert else 1)
        reached, _ = objective(net, masks.to(net.device), probe, dtype)
        masks.info |= {"round": index, "rounds": rounds, "objective": reached}
        masks.state = {f"score/{name}": tensor.detach().cpu().clone() for name, tensor in scores.items()}
        masks.state |= {f"{k}/{n}": v.cpu().clone() for n, t in scores.items() for k, v in adam.state[t].items()}
        yield masks


def objective(
    net: Net, masks: Mapping[str, Tensor], probe: Probe, dtype: torch.dtype
) -> tuple[float | None, dict[str, Tensor]]:
    """Return log P (None if P = 0) and ∂log P/∂m (∂P/∂m if P = 0)."""
    weights = {
        name: torch.zeros_like(w, dtype=dtype) if name.endswith("bias") else torch.ones_like(w, dtype=dtype)
        for name, w in net.weights.items()
    }
    leaves = net.leaves(weights, masks)
    identity = {
        name: torch.full_like(b, not name.endswith("running_mean"), dtype=dtype if b.is_floating_point() else b.dtype)
        for name, b in net.norm_buffers().items()
    }
    with _Paths() as paths:
        number = net(leaves, probe.ones(dtype), norm=identity).sum()
    value = float(number.detach())
    if not math.isfinite(value):
        raise InputError("dpai cannot count the paths of this net: their number overflows")
    if value <= 0:
        return None, net.gradient(number, leaves)
    log = number.log() + sum(paths.logarithms)
    return float(log.detach()), net.gradient(log, leaves)


def direction(slope: Tensor, mask: Tensor, view: WeightView, alpha: float, beta: float) -> Tensor:
    """Return (1 − α)·g + α·[(1 − β)·g·1(unit dead) + β·g·1(kernel dead)] in the shape of the weight."""
    g = view.matrices(slope)
    through = g.abs() * view.matrices(mask)  # 0 where no path leads
    entering, _ = view.unit_sums(through)
    kernels = through if view.stack else through.sum(0)
    return view.tensor(g * ((1 - alpha) + alpha * ((1 - beta) * (entering <= 0) + beta * (kernels <= 0))))


def _drawn(probe: Probe, name: str, net: Net, dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(
        net.weights[name].shape, generator=probe.at(1).generator("score", name), dtype=torch.float64, device="cpu"
    )
    return drawn.to(net.device, dtype).requires_grad_()


class _Paths(TorchFunctionMode):
    """While active, leaves activations and norms out and divides the input of each layer by its largest entry, whose
    logarithm is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithms: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").rstrip("_")
        if name in _IDENTITIES:
            return args[0] if args else kwargs["input"]
        if name in _LAYERS and args:
            largest = args[0].max()
            if largest > 0:
                self.logarithms.append(largest.log())
                args = (args[0] / largest, *args[1:])
        return func(*args, **kwargs)
