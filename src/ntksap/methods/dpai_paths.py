"""DPaI's number of paths: the net's own forward pass on ones, without biases, activations and norms."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from ntksap._base import InputError
from ntksap.net import (
    BOUNDS,
    IDENTITIES,
    SOFTMAXES,
    Net,
    map_tensors,
    nodes_after_layers,
    own_identities,
    without_upper_bound,
)
from ntksap.pruning import Probe

_LAYERS = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip
_PRODUCTS = {*_LAYERS, "matmul", "rmatmul", "mm", "bmm", "mv", "addmm", "baddbmm", "einsum"}
_CURVED = {
    "exp", "expm1", "log", "log1p", "logsumexp", "pow", "square", "sqrt", "rsqrt", "reciprocal", "erf", "sin", "cos",
    "var", "std", "var_mean", "std_mean", "norm", "linalg_norm", "linalg_vector_norm", "glu", "lstm", "gru", "rnn_tanh",
    "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
}  # fmt: skip


def objective(
    net: Net, masks: Mapping[str, Tensor], probe: Probe, dtype: torch.dtype
) -> tuple[float | None, dict[str, Tensor]]:
    """Return log P (None if P = 0) and ∂log P/∂m (∂P/∂m if P = 0)."""
    leaves, number, paths = _followed(net, masks, probe, dtype)
    value = float(number.detach())
    if not math.isfinite(value):
        raise InputError("dpai cannot count the paths of this net: their number overflows")
    if value < 0:
        raise InputError(
            "dpai cannot count the paths of this net: with masks as weights its outputs sum to a negative number, so "
            "something in it subtracts, such as a norm that is written out, or a mean that is taken from the inputs. "
            "An activation or norm of your own is left out if it is a module whose class name says so (…Norm, "
            "…Activation); or use another method"
        )
    if value == 0:
        return None, net.gradient(number, leaves)
    log = number.log() + sum(paths.logarithms)
    return float(log.detach()), net.gradient(log, leaves)


def curved(net: Net, probe: Probe, dtype: torch.dtype) -> list[str]:
    """Return the names of the functions that make something else than a number of paths out of one."""
    ones = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}
    return _followed(net, ones, probe, dtype)[2].curved


def _followed(
    net: Net, masks: Mapping[str, Tensor], probe: Probe, dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor, "_Paths"]:
    """Return the leaves, the sum of the outputs, and what was noted on the way."""
    weights = {
        name: torch.zeros_like(w, dtype=dtype) if name.endswith("bias") else torch.ones_like(w, dtype=dtype)
        for name, w in net.weights.items()
    }
    leaves = net.leaves(weights, masks)
    identity = {
        name: torch.full_like(b, not name.endswith("running_mean"), dtype=dtype if b.is_floating_point() else b.dtype)
        for name, b in net.norm_buffers().items()
    }
    ones = probe.ones(dtype)

    def evaluated(outermost: Collection[int] = ()) -> tuple[Tensor, _Paths]:
        with own_identities(net), _Paths(dtype, outermost) as paths:
            return net(leaves, ones, norm=identity), paths

    try:
        output, paths = evaluated()
        if outermost := paths.softmaxes_in(nodes_after_layers(output)):
            output, paths = evaluated(outermost)
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a foreign module does with numbers that are not its own
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"dpai cannot count the paths of this net ({said.rstrip('.')}): use another method") from error
    return leaves, output.sum(), paths


class _Paths(TorchFunctionMode):
    """While active, leaves activations and norms out and divides the input of each layer by its largest entry, whose
    logarithm is kept. All numbers that arise are in ``dtype``, whatever the module casts them to.

    ``outermost``: which calls of softmax (and its likes) to leave out as well.
    """

    def __init__(self, dtype: torch.dtype, outermost: Collection[int]) -> None:
        super().__init__()
        self.logarithms: list[Tensor] = []
        self.curved: list[str] = []
        self._dtype = dtype
        self._outermost = outermost
        self._softmaxes: list[Node | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        x = args[0] if args else kwargs.get("input")
        if _left_out(name, args):
            return x
        if name in BOUNDS and isinstance(x, Tensor) and x.requires_grad:  # positions and lengths keep their bounds
            return self._cast(without_upper_bound(name, x, args, kwargs))
        if name in SOFTMAXES:
            result = x if len(self._softmaxes) in self._outermost else self._cast(func(*args, **kwargs))
            self._softmaxes.append(result.grad_fn)
            return result
        if name in _CURVED and name not in self.curved and isinstance(x, Tensor) and x.requires_grad:
            self.curved.append(name)
        if name in _PRODUCTS:
            args = map_tensors(args, self._cast)
        if name in _LAYERS and args:
            largest = args[0].max()
            if largest > 0:
                self.logarithms.append(largest.log())
                args = (args[0] / largest, *args[1:])
        return self._cast(func(*args, **kwargs))

    def softmaxes_in(self, nodes: Collection[Node]) -> set[int]:
        """Return which calls of softmax made one of these nodes."""
        return {index for index, node in enumerate(self._softmaxes) if node in nodes}

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != self._dtype:
            return value.to(self._dtype)
        return value


def _left_out(name: str, args: Any) -> bool:
    if name == "batch_norm":  # with statistics of 0 and 1 it is the identity but for its ε; without, it needs a batch
        return args[1] is None
    return name in IDENTITIES
