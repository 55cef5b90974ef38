"""Which kept weights lie on a path from input to output? The others have no effect."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ntksap._base import generator_of
from ntksap.net import BOUNDS, Net, map_tensors, without_upper_bound
from ntksap.pruning import MakeInputs, Masks, Probe, without_followers

_DRAWS, _INPUTS = 5, 8


def effective_masks(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
) -> Masks:
    """Return ``masks`` without the weights that no path from input to output uses.

    The module itself is evaluated on random positive inputs with random positive weights, no biases, and BatchNorms
    that change nothing. Signals are then positive wherever they arrive, so a weight is on a path exactly when the
    output depends on it: ∂(Σ c·output)/∂w ≠ 0. Reachability is thus found on the module's own graph. Bounds such as
    ReLU6's, where large signals no longer depend on anything, are left out. Some layers hide a path from a single input
    (max-pooling lets only the largest entry through, LayerNorm makes half of its signals negative), so the union over
    several draws of many inputs is taken.

    >>> layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> masks = {"0.weight": torch.tensor([[True, True], [False, False]]), "2.weight": torch.tensor([[False, True]])}
    >>> effective_masks(layers, masks, input_shape=(2,)).kept   # unit 0 leads nowhere, unit 1 hears nothing
    0
    """
    Masks(masks).check(model)
    masks = without_followers(masks)
    net = Net(model, output=output, include=tuple(masks), dtype=torch.float64)
    probe = Probe.of(net, input_shape=input_shape, inputs=inputs)
    statistics = {
        name: torch.full_like(value, name.endswith("running_var"), dtype=net.dtype)
        for name, value in net.norm_buffers().items()
    }
    kept = {name: mask.to(net.device) for name, mask in masks.items()}
    used = {name: torch.zeros_like(mask) for name, mask in kept.items()}
    for draw in range(_DRAWS):
        weights = {
            name: _positive(name, weight, kept.get(name), generator_of("reach", draw, name))
            for name, weight in net.weights.items()
        }
        leaves = net.leaves(weights, kept)
        inputs_drawn = map_tensors(probe.noise(draw, _INPUTS), lambda t: t.abs() if t.is_floating_point() else t)
        with _Unbounded():
            outputs = net(leaves, inputs_drawn, norm=statistics)
        chosen = torch.rand(outputs.shape, generator=generator_of("reach", draw), dtype=torch.float64, device="cpu").to(
            outputs
        )
        gradients = net.gradient((outputs * chosen).sum(), leaves)
        for name in net.prunable:
            used[name] |= kept[name] & (gradients[name] != 0) & gradients[name].isfinite()
    return Masks(used)


def _positive(name: str, weight: Tensor, mask: Tensor | None, generator: torch.Generator) -> Tensor:
    """Return the stand-in for a parameter: 0 for a bias, 1 for a norm's scale, positive numbers for a weight."""
    if weight.dim() < 2:
        return torch.zeros_like(weight) if name.endswith("bias") else torch.ones_like(weight)
    numbers = torch.rand(weight.shape, generator=generator, dtype=torch.float64, device="cpu").add(0.5).to(weight)
    # Sums over kept inputs stay near one, so that deep nets neither overflow nor underflow.
    inputs = weight[0].numel() if mask is None else mask.flatten(1).sum(1).float().mean()
    return numbers / max(float(inputs), 1.0)


class _Unbounded(TorchFunctionMode):
    """While active, nothing cuts off large signals."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").rstrip("_")
        signal = args[0] if args else kwargs.get("input")
        if isinstance(signal, Tensor) and signal.requires_grad:
            if name in ("relu6", "hardtanh", "hardsigmoid"):
                return signal
            if name in BOUNDS:
                return without_upper_bound(name, signal, args, kwargs)
        return func(*args, **kwargs)
