"""`Jacobian`: the derivative of a module's outputs by its kept weights, as a linear map."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ntksap.errors import InputError
from ntksap.layers import Selectors
from ntksap.masks import Masks
from ntksap.net import Inputs, Net, Norm, map_tensors
from ntksap.probe import Probe

Piece: TypeAlias = tuple[str, Tensor]
"""Columns of J that belong to one weight tensor: its name, and positions in the flattened tensor."""


class Jacobian:
    """J = ∂f(inputs; w)/∂w at w = θ⊙m, by the kept weights only, as a linear map that is never formed as a whole.

    A row for each number that the module returns, in the order of ``output.flatten()``: where the output is (n, k), row
    i·k + c is output c of input i. A column for each kept prunable weight; pruned weights, biases and normalisation do
    not count. The module is not changed.

    Args:
        model: any ``nn.Module``.
        inputs: what it is called with: a tensor, or a tuple or dict of arguments.
        masks: {name: bool mask}; a prunable weight without a mask is kept in full.
        norm: the statistics of BatchNorm, which are constants here in every case: ``"running"`` (the module's own
            buffers), ``"batch"`` (mean and unbiased variance of these very inputs in the masked net, taken once), or
            buffers that `Net.statistics` returned.
        output, include, exclude, dtype, device: see `Net`.

    >>> jacobian = Jacobian(nn.Linear(2, 1, bias=False), torch.tensor([[3.0, 4.0]]))
    >>> jacobian.transposed_times(torch.ones(1))["weight"]
    tensor([[3., 4.]])
    >>> jacobian.times({"weight": torch.tensor([[10.0, 1.0]])})
    tensor([34.])
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        masks: Mapping[str, Tensor] | None = None,
        *,
        norm: Norm = "running",
        output: Callable[[Any], Tensor] | None = None,
        include: Selectors = None,
        exclude: Selectors = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.net = net = Net(model, output=output, include=include, exclude=exclude, dtype=dtype, device=device)
        given = Masks(masks or {})
        given.check(model)
        for name in given:
            if name not in net.prunable:
                raise InputError(f"there is a mask for {name!r}, which is not prunable here: pass include= as well")
        dense = Masks.ones({name: net.weights[name] for name in net.prunable})
        self.masks = dense.to(net.device) | given.to(net.device)
        plain = dict(inputs) if isinstance(inputs, Mapping) else inputs
        self.inputs: Inputs = Probe.of(net, data=[(plain, None)]).batches[0][0]  # on the net's device, in its dtype
        self.weights = net.leaves(net.weights, self.masks)
        self.norm = net.statistics(self.weights, self.inputs) if norm == "batch" else norm
        with torch.no_grad():
            output_shape = net(self.weights, self.inputs, norm=self.norm).shape
        self.rows = math.prod(output_shape)
        self.num_inputs = output_shape[0] if output_shape else 1

    def values(self, weights: Mapping[str, Tensor], inputs: Inputs | None = None) -> Tensor:
        """Return f(inputs; weights), flat; by default on all inputs."""
        return self.net(weights, self.inputs if inputs is None else inputs, norm=self.norm).flatten()

    def times(self, tangent: Mapping[str, Tensor]) -> Tensor:
        """Return J (tangent ⊙ m) (rows,) by one pass in forward mode; ``tangent`` names every prunable weight."""
        with forward_ad.dual_level():
            # Leaves that require a gradient: without one, attention takes a fused path that has no forward mode.
            dual = {n: forward_ad.make_dual(self.weights[n], tangent[n] * self.masks[n]) for n in self.masks}
            slope: Tensor | None = forward_ad.unpack_dual(self.values({**self.weights, **dual})).tangent
        if slope is None:  # nothing prunable reaches the output
            return torch.zeros(self.rows, dtype=self.net.dtype, device=self.net.device)
        return slope.detach()

    def transposed_times(self, vector: Tensor) -> dict[str, Tensor]:
        """Return m ⊙ (Jᵀ vector) by name, by one pass in reverse mode; ``vector`` is (rows,)."""
        if vector.shape != (self.rows,):
            raise InputError(f"the kernel has {self.rows} rows, the vector has shape {tuple(vector.shape)}")
        scalar = self.values(self.weights) @ vector.to(self.net.device, self.net.dtype)
        return {n: gradient * self.masks[n] for n, gradient in self.net.gradient(scalar, self.weights).items()}

    def gram_times(self, vector: Tensor) -> Tensor:
        """Return Θ vector = J diag(m) Jᵀ vector (rows,): one reverse and one forward-mode pass, nothing larger."""
        return self.times(self.transposed_times(vector))

    def pieces(self, width: int) -> Iterator[list[Piece]]:
        """Yield the columns in the order of the weights, ``width`` of them at a time."""
        block: list[Piece] = []
        room = width
        for name, mask in self.masks.items():
            kept = mask.flatten().nonzero().flatten()
            while len(kept):
                part, kept = kept[:room], kept[room:]
                block.append((name, part))
                room -= len(part)
                if room == 0:
                    yield block
                    block, room = [], width
        if block:
            yield block

    def columns(self, pieces: list[Piece], groups: list[Inputs], on_group: Callable[[], object]) -> Tensor:
        """Return these columns of J (rows × width), from one reverse pass per row through the group it belongs to."""
        block = torch.zeros(self.rows, sum(len(p) for _, p in pieces), dtype=self.net.dtype, device=self.net.device)
        leaves = [self.weights[name] for name, _ in pieces]
        row = 0
        for group in groups:
            for value in self.values(self.weights, group):
                if value.requires_grad:
                    # Only these leaves are asked for, so that the pass stops at the first of them.
                    gradients = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
                    parts = [g.flatten()[p] for g, (_, p) in zip(gradients, pieces, strict=True)]
                    torch.cat(parts, out=block[row])
                row += 1
            on_group()
        return block

    def groups(self) -> list[Inputs]:
        """Return the inputs one by one if the module treats each by itself, else all of them as one group.

        Found by comparing outputs. A module that mixes inputs (BatchNorm that keeps no statistics, attention over the
        batch) has an exact kernel too, n times slower, since each reverse pass goes through all inputs.
        """
        count = self.num_inputs
        apart: list[Inputs] = [_single(self.inputs, index, count) for index in range(count)]
        with torch.no_grad():
            whole = self.values(self.weights)
            try:
                parts = torch.cat([self.values(self.weights, single) for single in apart])
            except Exception:  # whatever a module raises that cannot do one input; it just did all of them
                return [self.inputs]
        close = math.sqrt(torch.finfo(whole.dtype).eps) * whole.abs().max()
        alike = parts.shape == whole.shape and bool((parts - whole).abs().max() <= close)
        return apart if alike else [self.inputs]


def _single(inputs: Inputs, index: int, count: int) -> Inputs:
    """Return input ``index`` of ``count``: a slice of each tensor that has one entry per input; all else as it is."""

    def part(tensor: Tensor) -> Tensor:
        return tensor[index : index + 1] if tensor.dim() and tensor.shape[0] == count else tensor

    single: Inputs = map_tensors(inputs, part)
    return single
