"""PX, Path eXclusion (Iurada, Ciccone and Tommasi, CVPR 2024)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ntksap._base import InputError
from ntksap.net import Net, map_tensors
from ntksap.pruning import Batch, Probe

_RELUS = {functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
_LEAKY = {functional.leaky_relu, functional.leaky_relu_}
_IN_PLACE = {torch.relu_, Tensor.relu_, functional.leaky_relu_}
_NORMS = {f: inspect.signature(f) for f in (functional.layer_norm, functional.rms_norm, functional.group_norm)}


def px(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> dict[str, Tensor]:
    """Score a weight by its part in an upper bound on the trace of the neural tangent kernel: S = |∂I/∂θ²| ⊙ θ².

    I = Σ_x Σ_k z₁(x)_k · z₂_k, from three passes of the net for each batch x:

    - f(x; θ⊙m) in evaluation mode, which gives the gate of each ReLU, the ratio of its output to its input, and of each
      LayerNorm, RMSNorm and GroupNorm, 1/(σ² + ε), the square of that ratio except for the layer's weight;
    - z₁, the paths that are active: weights m, input x², each ReLU and norm replaced by its gate;
    - z₂, the paths' squared strengths: weights θ²⊙m, input of ones, all gates left out; this pass has a graph.

    Paths run from input to output: biases and running means are 0 in z₁ and z₂. BatchNorm is the identity in z₁ and
    its squared factor in z₂ (up to its ε). z₁ and z₂ exceed 10³⁸ on deep nets, so both are float64 where available.
    """
    dtype = torch.float32 if net.device.type == "mps" else torch.float64
    masked = {**net.weights, **{name: net.weights[name] * masks[name] for name in net.prunable}}
    ones = {name: torch.ones_like(weight, dtype=dtype) for name, weight in net.weights.items()}
    squares = {name: weight.to(dtype).square() for name, weight in net.weights.items()}
    for weights in (ones, squares):
        weights.update({name: torch.zeros_like(w) for name, w in weights.items() if name.endswith("bias")})
    buffers = net.norm_buffers()
    means = {name: torch.zeros_like(b) for name, b in buffers.items() if name.endswith("running_mean")}
    identity = _as({**{name: torch.ones_like(b) for name, b in buffers.items()}, **means}, dtype)
    squared = _as({**{name: b.square() for name, b in buffers.items()}, **means}, dtype)
    paths = {name: weight * masks[name] if name in masks else weight for name, weight in ones.items()}

    def part(batch: Batch) -> dict[str, Tensor]:
        inputs = batch[0]
        with torch.no_grad():
            with _Gates(None) as gates:
                net(masked, inputs)
            with _Gates(gates.found):
                active = net(paths, _floats(inputs, lambda x: x.to(dtype).square()), norm=identity)
        leaves = net.leaves(squares, masks)
        with _Gates([torch.ones((), dtype=dtype, device=net.device)] * len(gates.found)):
            strength = net(leaves, _floats(inputs, lambda x: torch.ones_like(x, dtype=dtype)), norm=squared)
        return net.gradient((active * strength).sum(), leaves)

    total = probe.sum(part, probe.unlabelled())
    return {name: squares[name] * total[name].abs() for name in net.prunable}


class _Gates(TorchFunctionMode):
    """While active, finds the gate of each ReLU and norm in the order of the calls or, given gates, uses those instead.

    It sees the functions, methods and modules alike, since all of them end in a call of a torch function.
    """

    def __init__(self, given: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.given = given
        self.found: list[Tensor] = []
        self.used = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _RELUS and func not in _LEAKY and func not in _NORMS:
            return func(*args, **kwargs)
        value: Tensor = args[0] if args else kwargs["input"]
        if self.given is None:
            if func in _NORMS:
                gate = _spread(func, value, _call(func, args, kwargs))
            elif func in _LEAKY:
                gate = _gate(value, args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01))
            else:
                gate = _gate(value, 0.0)
            self.found.append(gate)
            return func(*args, **kwargs)
        if self.used == len(self.given):
            raise InputError("PX needs a net that calls the same ReLUs whatever its inputs are; this one does not")
        gate = self.given[self.used]
        self.used += 1
        if func in _NORMS:
            weight = _call(func, args, kwargs)["weight"]
            if weight is not None:
                gate = gate * (_by_channel(weight, value) if func is functional.group_norm else weight)
            return value * gate
        return value.mul_(gate) if func in _IN_PLACE or kwargs.get("inplace") else value * gate


def _gate(value: Tensor, slope: float) -> Tensor:
    """Return 1 where ``value`` is above 0, else ``slope``."""
    return torch.full_like(value, slope).masked_fill_(value > 0, 1.0)


def _call(func: Callable[..., Tensor], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a norm by name."""
    call = _NORMS[func].bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments


def _spread(func: Callable[..., Tensor], value: Tensor, call: Mapping[str, Any]) -> Tensor:
    """Return 1/(σ² + ε) of what a norm normalises, in a shape that multiplies ``value``."""
    if func is functional.group_norm:  # (batch, groups) → (batch, channels, 1, …)
        groups = call["num_groups"]
        variance = value.reshape(len(value), groups, -1).var(-1, correction=0)
        variance = _by_channel(variance.repeat_interleave(value.shape[1] // groups, 1), value)
    else:
        inside = tuple(range(-len(call["normalized_shape"]), 0))
        centre = 0 if func is functional.rms_norm else value.mean(inside, keepdim=True)
        variance = (value - centre).square().mean(inside, keepdim=True)
    return 1 / (variance + (torch.finfo(value.dtype).eps if call["eps"] is None else call["eps"]))


def _by_channel(numbers: Tensor, value: Tensor) -> Tensor:
    """Return numbers (…, channels) in a shape that multiplies ``value`` (batch, channels, …)."""
    return numbers.view(*numbers.shape, *[1] * (value.dim() - 2))


def _floats(inputs: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return map_tensors(inputs, lambda t: function(t) if t.is_floating_point() else t)


def _as(buffers: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: b.to(dtype) if b.is_floating_point() else b for name, b in buffers.items()}
