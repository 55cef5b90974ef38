"""What is known about a net's parameters before they are drawn, without drawing them if the initialiser is known."""

import copy
import math

import torch
from torch import Tensor, nn

from ntksap._base import InputError, global_seed
from ntksap.methods.moments.value import Moments, fixed
from ntksap.net import Net, computes_weights, kaiming_normal

_DRAWS = 2


def initial_moments(net: Net) -> tuple[dict[str, float], dict[str, Moments]]:
    """Return E θ² of each prunable weight, and the moments of every other parameter, under the net's initialiser.

    For ``kaiming_normal`` no weight of a layer is drawn or looked at, so they may be on the meta device. With another
    initialiser, or where weights are computed from others, all are drawn a few times. Moments that are the same for all
    entries are one number, expanded.
    """
    if net._init is not kaiming_normal or computes_weights(net._skeleton):
        return _sampled(net)
    known, prunable = net.variances(), set(net.prunable)
    names = {id(parameter): name for name, parameter in net._skeleton.named_parameters()}
    squares: dict[str, float] = {}
    others: dict[str, Moments] = {}
    for part in net._skeleton.modules():
        for key, parameter in part._parameters.items():
            name = names.get(id(parameter))
            if name is None or parameter is None or name in squares or name in others:
                continue
            if name in prunable:
                present = None if parameter.is_meta else float(net.weights[name].double().square().mean())
                square = known.get(name, present)
                if square is None:
                    raise InputError(f"{name!r} is on the meta device and nothing says how it is drawn: exclude it")
                squares[name] = square
            elif name in known:
                others[name] = _spread(known[name], 0.0, parameter.shape)
            else:
                others[name] = _of(_values(part, key, net.weights[name], net._skeleton))
    return {name: squares[name] for name in net.prunable}, others


def _values(part: nn.Module, key: str, present: Tensor, root: nn.Module) -> list[Tensor]:
    """Return draws of one parameter by its module's own ``reset_parameters``, or the values that it has."""
    reset = getattr(type(part), "reset_parameters", None) or getattr(type(part), "_reset_parameters", None)
    if reset is None and not present.is_meta:
        return [present.double().cpu()]
    reset = reset or getattr(root, "_init_weights", None)  # from transformers, for one module
    drawn = []
    for index in range(_DRAWS):
        twin = copy.copy(part)  # without its children, which may be large
        twin.__dict__["_modules"] = {}
        twin.__dict__["_parameters"] = {
            k: None if p is None else nn.Parameter(torch.full(p.shape, math.nan, device="cpu"), requires_grad=False)
            for k, p in part._parameters.items()
        }
        with torch.no_grad(), global_seed("moments", index):
            if reset is not None:
                reset(twin)
        value = twin._parameters[key]
        assert value is not None
        if value.isnan().any():
            raise InputError(
                f"nothing says how {key!r} of {type(part).__name__} is drawn, and on the meta device it has no values: "
                "make the model on the CPU"
            )
        drawn.append(value.detach().double())
    return drawn


def _of(drawn: list[Tensor]) -> Moments:
    """Return the moments of a fixed value, or, if draws differ, those over all entries."""
    first = drawn[0]
    if any(not torch.equal(first, other) for other in drawn):
        values = torch.stack(drawn)
        return _spread(float(values.square().mean()), float(values.mean()), first.shape)
    if first.numel() and (first == first.flatten()[0]).all():
        value = float(first.flatten()[0])
        return _spread(value * value, value, first.shape)
    return fixed(first.square(), first)


def _spread(square: float, mean: float, shape: torch.Size) -> Moments:
    return fixed(*(torch.tensor(value, dtype=torch.float64, device="cpu").expand(shape) for value in (square, mean)))


def _sampled(net: Net) -> tuple[dict[str, float], dict[str, Moments]]:
    if any(weight.is_meta for weight in net.weights.values()):
        raise InputError("weights on the meta device cannot be drawn: only init='kaiming_normal' is known without that")
    draws = [net.draw("moments", index) for index in range(_DRAWS)]
    squares = {n: sum(float(d[n].double().square().mean()) for d in draws) / len(draws) for n in net.prunable}
    others = {n: _of([d[n].double().cpu() for d in draws]) for n in net.weights if n not in net.prunable}
    return squares, others
