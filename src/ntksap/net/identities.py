"""Activations and norms, which are the identity as far as the paths of a net are concerned."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _WeightNorm

from ntksap.net.net import Net

IDENTITIES = frozenset({
    "relu", "relu6", "leaky_relu", "rrelu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid",
    "hardtanh", "hardswish", "hardsigmoid", "softplus", "softsign", "tanhshrink", "hardshrink", "softshrink",
    "logsigmoid", "log_sigmoid", "threshold", "batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm",
    "local_response_norm", "normalize",
})  # fmt: skip
"""Torch's functions that are activations or norms, by name."""
BOUNDS = frozenset({"clamp", "clamp_min", "clamp_max", "clip"})
"""Those that bound what they are given: an activation (ReLU6 by hand), but for numbers of another kind also indices."""
SOFTMAXES = frozenset({"softmax", "log_softmax", "softmin"})


_NAMED = re.compile("norm|[cgrs]elu|elu$|silu|swish|mish|activation", re.IGNORECASE)  # not PixelUnshuffle


@contextmanager
def own_identities(net: Net) -> Iterator[None]:
    """Inside the block, norms and activations that are custom modules return what they are given.

    They are recognised by the name of their class: such as RMSNorm and NewGELUActivation of transformers, whose parts
    are not identities. One that is given several tensors, or changes the shape of its one, stays as it is. BatchNorm
    and InstanceNorm stay too, since whoever counts may replace their statistics, and so does weight_norm, which makes a
    weight out of two.
    """
    own = [
        part
        for part in net._skeleton.modules()
        if _NAMED.search(type(part).__name__)
        and not isinstance(part, _NormBase | _WeightNorm)
        and not any(part.children())
        and all(parameter.dim() < 2 for parameter in part.parameters())
    ]
    try:
        for part in own:
            part.forward = _unchanged(part.forward)
        yield
    finally:
        for part in own:
            part.__dict__.pop("forward", None)


def _unchanged(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward pass that returns the one tensor it is given, if ``forward`` keeps its shape."""

    def same(*args: Any, **kwargs: Any) -> Any:
        signals = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if len(signals) == 1:
            with torch.no_grad(), torch._C.DisableTorchFunction():  # so that nobody follows this
                found = forward(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})
            if isinstance(found, Tensor) and found.shape == signals[0].shape:
                return signals[0]
        return forward(*args, **kwargs)

    return same


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def without_upper_bound(name: str, x: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return what one of `BOUNDS`, called with these arguments, makes of ``x`` if nothing is too large.

    A lower bound above zero stays: it guards a division, or a logarithm, by something that may be zero.
    """
    lower = kwargs.get("min", args[1] if len(args) > 1 and name != "clamp_max" else None)
    if lower is None or (not isinstance(lower, Tensor) and lower <= 0):
        return x
    return x.clamp_min(lower)
