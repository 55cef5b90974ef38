"""`Taps`: derivatives of each input by itself, from what enters and what leaves the layers of a batch of inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import grad as conv_grad

from ntksap.net import Net
from ntksap.net.kernels import Geometry, by_kept_weights, without_skips

_WEIGHT_GRADIENT: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: conv_grad.conv1d_weight,
    nn.Conv2d: conv_grad.conv2d_weight,
    nn.Conv3d: conv_grad.conv3d_weight,
}


class Call(NamedTuple):
    """One use of a layer: the name of its weight, the layer, its input a (n, …) and its output z (n, …)."""

    name: str
    layer: nn.Module
    entered: Tensor
    left: Tensor


class Taps:
    """Forward hooks on the linear and convolution layers of a `Net`.

    For a scalar f_i of input i alone, ∂f_i/∂W = Σ_s δ_is ⊗ a_is: the sum over all places s at which the layer is
    applied to input i, δ = ∂f/∂z after the layer, a before it. One reverse pass over a batch gives δ for every
    input and no derivative with respect to a weight; the sum is one product of matrices per input and layer.

    It assumes that the first dimension of a and z counts inputs, and that the weights are used nowhere else. Its users
    compare one input with plain differentiation.
    """

    def __init__(self, net: Net) -> None:
        self.layers = [(name, layer) for name, layer in net.users() if _known(layer)]

    def cover(self, names: Sequence[str]) -> bool:
        """Return whether each of these weights belongs to a layer that can be tapped."""
        return set(names) <= {name for name, _ in self.layers}

    @contextmanager
    def listening(self) -> Iterator[list[Call]]:
        """Collect the calls of all layers while the net is evaluated."""
        calls: list[Call] = []

        def tap(name: str) -> Any:
            def hook(layer: nn.Module, args: tuple[Tensor, ...], left: Tensor) -> Tensor:
                if not left.requires_grad:  # the first layers: no derivative with respect to weights is wanted
                    left.requires_grad_()
                calls.append(Call(name, layer, args[0].detach(), left))
                return left.clone()  # the next function may work in place, and δ must be that of z itself

            return hook

        handles = [layer.register_forward_hook(tap(name)) for name, layer in self.layers]
        try:
            yield calls
        finally:
            for handle in handles:
                handle.remove()


class Columns(NamedTuple):
    """Which derivatives with respect to a weight tensor are wanted: positions in the flat tensor, in increasing order.

    ``kept`` is the same as a mask in the shape of the weight, where the positions have gaps.
    """

    positions: slice | Tensor
    kept: Tensor | None = None

    @classmethod
    def of(cls, positions: Tensor, shape: torch.Size) -> "Columns":
        """Return these positions; as a slice if there is no gap between them, since a slice is copied faster."""
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions):
            return cls(slice(first, last + 1))
        kept = torch.zeros(shape.numel(), dtype=torch.bool, device=positions.device)
        return cls(positions, kept.index_fill_(0, positions, True).view(shape))


def derivatives(
    outputs: Tensor, calls: Sequence[Call], wanted: Mapping[str, Columns]
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (i, {name: ∂outputs[i]/∂W (k, columns)}) for each input i; a name that is not there means zero.

    Args:
        outputs: (n, k), row i a function of input i alone.
        calls: the calls of the evaluation that made them.
        wanted: the weights that are asked for, and which columns of them.
    """
    used = [call for call in calls if call.name in wanted and outputs.requires_grad]
    passes = [
        torch.autograd.grad(column, [call.left for call in used], retain_graph=True, materialize_grads=True)
        for column in (outputs.sum(0) if used else ())
    ]
    for index in range(len(outputs)):
        found: dict[str, Tensor] = {}
        for number, call in enumerate(used):
            behind = torch.stack([deltas[number][index] for deltas in passes])
            part = _contract(call.layer, call.entered[index], behind, wanted[call.name])
            found[call.name] = found[call.name] + part if call.name in found else part
        yield index, found


def _contract(layer: nn.Module, entered: Tensor, behind: Tensor, columns: Columns) -> Tensor:
    """Σ_s δ_s ⊗ a_s (k, columns): ``entered`` is a of one input, ``behind`` is δ (k, …) for k scalars."""
    k = len(behind)
    if isinstance(layer, nn.Linear):
        summed: Tensor = behind.reshape(k, -1, layer.out_features).mT @ entered.reshape(-1, layer.in_features)
        return summed.flatten(1)[:, columns.positions]
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    how = Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)
    if isinstance(layer, nn.Conv2d) and columns.kept is not None:
        few = by_kept_weights(entered[None], behind, columns.kept, *how)
        if few is not None:
            return few
    # The k scalars become output channels: one convolution that is k times as wide.
    groups, shape = layer.groups, layer.weight.shape
    wide = behind.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 2)
    entered, how = without_skips(entered, shape, how)
    made = _WEIGHT_GRADIENT[type(layer)](entered[None], (k * shape[0], *shape[1:]), wide[None], *how)
    apart: Tensor = made.unflatten(0, (groups, k, -1)).transpose(0, 1).flatten(1, 2)
    return apart.flatten(1)[:, columns.positions]


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    plain = type(layer) in _WEIGHT_GRADIENT and getattr(layer, "padding_mode", None) == "zeros"
    return plain and not isinstance(layer.padding, str)
