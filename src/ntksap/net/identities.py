"""Activations and norms, which are the identity as far as the paths of a net are concerned."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

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
    are not identities. BatchNorm and InstanceNorm stay as they are, since whoever counts may replace their
    statistics, and so does weight_norm, which makes a weight out of two.
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
            part.forward = lambda x, *args, **kwargs: x
        yield
    finally:
        for part in own:
            part.__dict__.pop("forward", None)
