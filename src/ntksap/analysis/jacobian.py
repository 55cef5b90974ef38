"""`Jacobian`: the derivative of a module's outputs with respect to its kept weights, as a linear map."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ntksap._base import InputError, generator_of
from ntksap.analysis.taps import Call, Columns, Taps, derivatives
from ntksap.net import Inputs, Net, Norm, Selectors, map_tensors
from ntksap.pruning import Masks, Probe, without_followers

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Piece: TypeAlias = tuple[str, Tensor]
"""Columns of J that belong to one weight tensor: its name, and positions in the flattened tensor."""

_OUTPUTS_AT_A_TIME = 16
_TAP_MIB = 128
"""How much memory the tapped derivatives of a group of inputs may take."""


class Passes(NamedTuple):
    """How rows of J are made: the inputs in groups, and taps if their rows come from those."""

    groups: list[Inputs]
    taps: Taps | None


class Jacobian:
    """J = ∂f(inputs; w)/∂w at w = θ⊙m, a linear map that is never formed as a whole.

    There is a row for each number that the module returns, in the order of ``output.flatten()``: where the output is
    (n, k), row i·k + c is output c of input i. There is a column for each kept prunable weight; pruned weights, biases
    and normalisation do not count. The module is not changed.

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
        given = Masks(without_followers(masks or {}))
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
        """Return J (tangent ⊙ m) (rows,) from one pass in forward mode; ``tangent`` names every prunable weight."""
        with forward_ad.dual_level():
            # Leaves that require a gradient: without one, attention takes a fused path that has no forward mode.
            dual = {n: forward_ad.make_dual(self.weights[n], tangent[n] * self.masks[n]) for n in self.masks}
            slope: Tensor | None = forward_ad.unpack_dual(self.values({**self.weights, **dual})).tangent
        if slope is None:  # nothing prunable reaches the output
            return torch.zeros(self.rows, dtype=self.net.dtype, device=self.net.device)
        return slope.detach()

    def transposed_times(self, vector: Tensor) -> dict[str, Tensor]:
        """Return m ⊙ (Jᵀ vector) by name, from one pass in reverse mode; ``vector`` is (rows,)."""
        if vector.shape != (self.rows,):
            raise InputError(f"the kernel has {self.rows} rows, the vector has shape {tuple(vector.shape)}")
        scalar = self.values(self.weights) @ vector.to(self.net.device, self.net.dtype)
        return {n: gradient * self.masks[n] for n, gradient in self.net.gradient(scalar, self.weights).items()}

    def gram_times(self, vector: Tensor) -> Tensor:
        """Return Θ vector = J diag(m) Jᵀ vector (rows,): one reverse and one forward-mode pass, nothing larger."""
        return self.times(self.transposed_times(vector))

    def gram_operator(self) -> "LinearOperator":
        """Return Θ = J diag(m) Jᵀ as a linear operator of SciPy (float64), which forms nothing larger than the weights.

        So ``scipy.sparse.linalg.eigsh(jacobian.gram_operator(), k=10)`` gives its largest eigenvalues, and estimators
        from other packages (such as curvlinops) its trace and spectral density. Raises `InputError` without SciPy.

        >>> operator = Jacobian(nn.Linear(2, 1), torch.tensor([[3.0, 4.0], [1.0, 0.0]])).gram_operator()
        >>> operator @ np.array([1.0, 0.0])
        array([25.,  3.])
        """
        try:
            from scipy.sparse.linalg import LinearOperator
        except ModuleNotFoundError as error:
            raise InputError("operators need SciPy: pip install scipy") from error

        def product(vector: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
            found = self.gram_times(torch.from_numpy(vector.reshape(-1).astype(np.float64)))
            return np.asarray(found.double().cpu().numpy())

        return LinearOperator((self.rows, self.rows), matvec=product, rmatvec=product, dtype=np.float64)

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

    def columns(self, pieces: list[Piece], passes: Passes, buffer: Tensor, on_input: Callable[[], object]) -> Tensor:
        """Return these columns of J, made by groups of inputs in ``buffer`` (rows × at least as many columns)."""
        block = buffer[:, : sum(len(p) for _, p in pieces)]
        fill = self._fill_row_by_row if passes.taps is None else self._fill_by_taps
        wanted = {name: Columns.of(positions, self.masks[name].shape) for name, positions in pieces}
        filled = 0
        for group in passes.groups:
            for rows in fill(block[filled:], wanted, passes, group):
                filled += rows
                on_input()
        return block

    def passes(self) -> Passes:
        """Find, by trial, the fastest way to the rows of J that gives the right ones for this module.

        Where inputs do not go through the module by themselves (BatchNorm that keeps no statistics, attention over the
        batch), they are one group, each row a reverse pass through all of them. Where they do, but a weight is used in
        another way than by linear and convolution layers on (n, …), a row is a reverse pass through one input.
        Otherwise `Taps` give the rows of many inputs from k reverse passes.
        """
        count = self.num_inputs
        with torch.no_grad():
            whole = self.values(self.weights).view(count, -1)
        if not all(self._alone(index, whole) for index in {index * (count - 1) // 7 for index in range(8)}):
            return Passes([self.inputs], None)
        taps = Taps(self.net)
        size = self._trial(taps) if taps.cover(self.net.prunable) else 0
        step = min(size, count) or 1
        return Passes(
            [part_of(self.inputs, start, start + step, count) for start in range(0, count, step)],
            taps if size else None,
        )

    def _fill_row_by_row(
        self, block: Tensor, wanted: dict[str, Columns], passes: Passes, group: Inputs
    ) -> Iterator[int]:
        """One reverse pass per row; yields how many rows it wrote."""
        leaves = [self.weights[name] for name in wanted]
        values = self.values(self.weights, group)
        for row, value in zip(block, values, strict=False):
            if value.requires_grad:
                # Only these leaves are asked for, so that the pass stops at the first of them.
                gradients = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
                parts = zip(gradients, wanted.values(), strict=True)
                torch.cat([g.flatten()[columns.positions] for g, columns in parts], out=row)
            else:
                row.zero_()
        yield len(values)

    def _fill_by_taps(self, block: Tensor, wanted: dict[str, Columns], passes: Passes, group: Inputs) -> Iterator[int]:
        """A reverse pass per output for all inputs of the group; yields how many rows it wrote."""
        assert passes.taps is not None
        outputs, calls = self._tapped(passes.taps, group)
        grid = block[: outputs.numel()].view(*outputs.shape, block.shape[1])
        for first in range(0, outputs.shape[1], _OUTPUTS_AT_A_TIME):
            some = slice(first, first + _OUTPUTS_AT_A_TIME)
            for index, found in derivatives(outputs[:, some], calls, wanted):
                column = 0
                for name, columns in wanted.items():
                    place = columns.positions
                    width = place.stop - place.start if isinstance(place, slice) else len(place)
                    grid[index, some, column : column + width] = found.get(name, 0)
                    column += width
        yield from [outputs.shape[1]] * len(outputs)

    def _tapped(self, taps: Taps, inputs: Inputs) -> tuple[Tensor, list[Call]]:
        """Return the outputs (n, k) of these inputs and the calls of layers that made them."""
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        with taps.listening() as calls:
            values = self.net(weights, inputs, norm=self.norm, kept=self.masks)
        return values.reshape(-1, self.rows // self.num_inputs), calls  # an image may have its channels last

    def _alone(self, index: int, whole: Tensor) -> bool:
        """Return whether input ``index`` by itself has the same outputs as among all inputs, ``whole`` (n, k)."""
        try:
            with torch.no_grad():
                alone = self.values(self.weights, part_of(self.inputs, index, index + 1, len(whole)))
        except Exception:  # whatever a module raises that cannot handle one input; it just handled all of them
            return False
        close = math.sqrt(torch.finfo(whole.dtype).eps) * whole.abs().max()
        return alone.shape == whole[index].shape and bool((alone - whole[index]).abs().max() <= close)

    def _trial(self, taps: Taps) -> int:
        """Return how many inputs to tap at a time, 0 if taps do not give the derivatives that autograd gives."""
        count, k = self.num_inputs, self.rows // self.num_inputs
        first, last = max(0, count - 2), count - 1
        mix = torch.randn(k, generator=generator_of("taps"), dtype=torch.float32, device="cpu").to(
            self.net.device, self.net.dtype
        )
        scalar = self.values(self.weights, part_of(self.inputs, last, count, count)) @ mix
        expected = self.net.gradient(scalar, self.weights)
        values, calls = self._tapped(taps, part_of(self.inputs, first, count, count))
        outputs = values @ mix[:, None]
        if any(len(call.entered) != len(outputs) or len(call.left) != len(outputs) for call in calls):
            return 0
        wanted = {name: Columns(slice(0, mask.numel())) for name, mask in self.masks.items()}
        found = dict(derivatives(outputs, calls, wanted)).get(last - first, {})
        wrong = sum(float((found[n][0] - e.flatten() if n in found else e).square().sum()) for n, e in expected.items())
        size = sum(float(e.square().sum()) for e in expected.values())
        if not math.sqrt(wrong) <= 10 * math.sqrt(torch.finfo(values.dtype).eps * size):
            return 0
        floats = sum(call.left.numel() for call in calls) / len(outputs) * (min(k, _OUTPUTS_AT_A_TIME) + 4)
        return max(1, int(_TAP_MIB * 2**20 / (1 + floats * values.dtype.itemsize)))


def part_of(inputs: Inputs, start: int, stop: int, count: int) -> Inputs:
    """Return some of ``count`` inputs: a slice of each tensor that has one entry per input; others as they are."""

    def part(tensor: Tensor) -> Tensor:
        return tensor[start:stop] if tensor.dim() and tensor.shape[0] == count else tensor

    some: Inputs = map_tensors(inputs, part)
    return some
