"""Is a net positively homogeneous? SynFlow and PX assume that it is, so they say when it is not.

f is positively homogeneous if f(a·w) = a^L · f(w) for a > 0: convolutions, linear layers, ReLU and LeakyReLU, pooling,
sums, and BatchNorm in evaluation mode are. Then a score that sums over paths accounts for all of f.
"""

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ntksap._base import ApproximationWarning
from ntksap.pruning import Masks

# Functions of torch by name (as a function, a method, or in-place), and the module that does the same.
_BENDS = {
    "celu": "CELU",
    "cos": "cos",
    "elu": "ELU",
    "exp": "exp",
    "gelu": "GELU",
    "glu": "GLU",
    "group_norm": "GroupNorm",
    "gru": "GRU",
    "gru_cell": "GRUCell",
    "hardsigmoid": "Hardsigmoid",
    "hardswish": "Hardswish",
    "hardtanh": "Hardtanh",
    "instance_norm": "InstanceNorm",
    "layer_norm": "LayerNorm",
    "local_response_norm": "LocalResponseNorm",
    "log_softmax": "LogSoftmax",
    "logsigmoid": "LogSigmoid",
    "lstm": "LSTM",
    "lstm_cell": "LSTMCell",
    "mish": "Mish",
    "multi_head_attention_forward": "MultiheadAttention",
    "normalize": "normalize",
    "relu6": "ReLU6",
    "rms_norm": "RMSNorm",
    "rnn_relu": "RNN",
    "rnn_tanh": "RNN",
    "scaled_dot_product_attention": "scaled_dot_product_attention",
    "selu": "SELU",
    "sigmoid": "Sigmoid",
    "silu": "SiLU",
    "sin": "sin",
    "softmax": "Softmax",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
    "tanhshrink": "Tanhshrink",
}
_BATCH_NORM = inspect.signature(functional.batch_norm)


class Bends(TorchFunctionMode):
    """While active, notes in ``seen`` which calls of torch functions are not positively homogeneous.

    >>> import torch
    >>> with Bends() as bends:
    ...     output = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.GELU())(torch.ones(2)).tanh()
    >>> bends.seen
    ['GELU', 'Tanh']
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; what it calls itself is not looked at."""
        kwargs = kwargs or {}
        name = _BENDS.get(getattr(func, "__name__", "").rstrip("_"))
        if func is functional.batch_norm and _BATCH_NORM.bind(*args, **kwargs).arguments.get("training"):
            name = "BatchNorm without running statistics"
        if name is not None and name not in self.seen:
            self.seen.append(name)
        return func(*args, **kwargs)


def warn_of_bends(states: Iterator[Masks], method: str) -> Iterator[Masks]:
    """Yield the masks of each round; after the first, warn if something in the net is not positively homogeneous."""
    with Bends() as bends:
        first = next(states, None)
    if first is None:  # all rounds had already been done
        return
    if bends.seen:
        warnings.warn(
            f"{method} sums over the paths of a positively homogeneous net (ReLU and linear layers), and this one is "
            f"not, because of {', '.join(bends.seen)}: its scores are only approximate here",
            ApproximationWarning,
            stacklevel=2,
        )
    yield first
    yield from states
