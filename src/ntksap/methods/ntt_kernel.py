"""The kernel that NTT compares: Θ = J(x₁) diag(m) J(x₂)ᵀ of a student and of its teacher, whole or projected."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ntksap._base import InputError
from ntksap.net import Inputs, Net, map_tensors

EXACT_ENTRIES = 3 * 10**7
"""Numbers that the whole kernel may hold for one half of a batch: 120 MB in float32, several times that in all."""


@dataclass(frozen=True)
class Halves:
    """A batch, whole and in halves, with the outputs of the teacher and the constants that BatchNorm uses."""

    whole: Inputs
    one: Inputs
    two: Inputs
    counts: tuple[int, int]
    norm: Mapping[str, Tensor]
    teacher: Tensor

    @classmethod
    def of(cls, net: Net, inputs: Inputs) -> "Halves":
        """Return the batch in halves; the teacher has the net's own weights."""
        norm = net.statistics(net.weights, inputs)
        with torch.no_grad():
            teacher = net(net.weights, inputs, norm=norm)
        count = len(teacher)
        if count < 2:
            raise InputError("NTT splits each batch in halves, so a batch needs at least two inputs (drop the last?)")
        half = count // 2
        one, two = sliced(inputs, 0, half, count), sliced(inputs, half, count, count)
        return cls(inputs, one, two, (half, count - half), norm, teacher)

    @torch.no_grad()
    def check(self, net: Net) -> None:
        """Raise InputError unless the halves have the same outputs as in the whole batch."""
        try:
            apart = torch.cat([net(net.weights, half, norm=self.norm) for half in (self.one, self.two)]) - self.teacher
            size = self.teacher.abs().max()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a module raises that cannot handle only some of its inputs
            raise InputError(f"NTT splits each batch in halves, which this module cannot do ({error})") from error
        if apart.abs().max() > math.sqrt(net.eps) * size:
            raise InputError(
                "NTT splits each batch in halves, but the outputs of an input depend on the others here (nodes of a "
                "graph, attention over the batch): choose another method"
            )

    @property
    def outputs(self) -> int:
        """Numbers that the net returns for one input."""
        return self.teacher[0].numel()

    @property
    def rows(self) -> int:
        """Rows of the kernel."""
        return self.counts[0] * self.outputs


def sliced(inputs: Inputs, start: int, stop: int, count: int) -> Inputs:
    """Return some of ``count`` inputs: a slice of each tensor that has one entry per input; others as they are."""
    part: Inputs = map_tensors(inputs, lambda t: t[start:stop] if t.dim() and t.shape[0] == count else t)
    return part


def exact_fits(net: Net, names: Sequence[str], batch: Halves) -> bool:
    """Return whether the whole kernel holds no more than `EXACT_ENTRIES` numbers for the larger half of a batch.

    They are the Jacobian, and what a backward pass keeps of the forward pass, once for each output.
    """
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    leaves = {**net.weights, **{name: net.weights[name].detach().requires_grad_() for name in names}}
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        net(leaves, batch.two, norm=batch.norm)
    jacobian = batch.counts[1] * batch.outputs * sum(net.weights[name].numel() for name in names)
    return jacobian + batch.outputs * kept <= EXACT_ENTRIES


def kernel_gap(
    net: Net,
    names: Sequence[str],
    student: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    batch: Halves,
    projections: int,
    generator: torch.Generator | None,
    *,
    graph: bool,
) -> tuple[Tensor, Tensor]:
    """Return mean((Θ_s − Θ_T)²), differentiable with respect to the student's weights, and mean(Θ_T²).

    With a generator both are unbiased estimates: for V₁ and V₂ with entries ±1 at random and R rows each,
    E[mean((V₁ E V₂ᵀ)²)] is the sum over the squares of E, and V J costs R backward passes, however many rows J has.
    """
    scale = 1.0
    signs: list[Tensor] | None = None
    if generator is not None:
        shapes = [(projections, count, *batch.teacher.shape[1:]) for count in batch.counts]
        signs = [
            torch.randint(2, shape, generator=generator, device="cpu").to(batch.teacher) * 2 - 1 for shape in shapes
        ]
        scale = 1.0 / (math.prod(batch.counts) * batch.outputs**2)
    keep = {name: masks[name].flatten().nonzero().flatten().to(net.device) for name in masks}
    dense = {**net.weights, **{name: net.weights[name].detach().requires_grad_() for name in names}}
    ours = _kernel(net, names, student, keep, batch, signs, graph=graph)
    theirs = _kernel(net, names, dense, {}, batch, signs, graph=False)
    return scale * (ours - theirs).square().mean(), scale * theirs.square().mean()


def _kernel(
    net: Net,
    names: Sequence[str],
    weights: Mapping[str, Tensor],
    keep: Mapping[str, Tensor],
    batch: Halves,
    signs: list[Tensor] | None,
    *,
    graph: bool,
) -> Tensor:
    """V₁ J(x₁) diag(m) J(x₂)ᵀ V₂ᵀ over the columns ``keep`` of each weight; without signs, V is the identity."""
    sides = []
    for half, inputs, count in ((0, batch.one, batch.counts[0]), (1, batch.two, batch.counts[1])):
        if signs is not None:
            rows = _rows(net, names, weights, keep, inputs, batch.norm, signs[half], graph)
        else:
            # One input at a time: a backward pass through the others would only add zeros.
            shape = batch.outputs, 1, *batch.teacher.shape[1:]
            unit = torch.eye(batch.outputs, dtype=torch.float32, device="cpu").to(batch.teacher).view(shape)
            singles = [sliced(inputs, i, i + 1, count) for i in range(count)]
            rows = torch.cat([_rows(net, names, weights, keep, x, batch.norm, unit, graph) for x in singles])
        sides.append(rows)
    return sides[0] @ sides[1].T


def _rows(
    net: Net,
    names: Sequence[str],
    weights: Mapping[str, Tensor],
    keep: Mapping[str, Tensor],
    inputs: Inputs,
    norm: Mapping[str, Tensor],
    vectors: Tensor,
    graph: bool,
) -> Tensor:
    """V J (R × columns) for V = ``vectors`` (R, *output shape), by R backward passes."""
    output = net(weights, inputs, norm=norm)
    wanted = [weights[name] for name in names]
    rows = []
    for vector in vectors:
        gradients = torch.autograd.grad(
            output, wanted, vector, retain_graph=True, create_graph=graph, materialize_grads=True
        )
        flat = [g.flatten()[keep[n]] if n in keep else g.flatten() for n, g in zip(names, gradients, strict=True)]
        rows.append(torch.cat(flat))
    return torch.stack(rows)
