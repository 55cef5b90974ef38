"""How a weight tensor reads as matrices (outputs × inputs), one for each position of a kernel or each expert."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ntksap.net.layers import has_columns_first, is_stack, unwrap


@dataclass(frozen=True)
class WeightView:
    """The order of a weight's dimensions.

    Args:
        shape: the shape of the weight.
        inputs_first: 0 if outputs come first, as in linear layers and convolutions: (outputs, inputs, kernel…). Else
            (inputs, outputs, kernel…) in this many groups: transposed convolutions, and GPT-2's own linear layer (1).
        stack: the first dimension counts matrices, those of the experts of a mixture; each is (outputs, inputs) or,
            with ``inputs_first``, the other way round.
        groups: the groups of a convolution with outputs first; each has its own inputs.

    >>> import torch
    >>> WeightView((6, 4, 3, 3)).matrices(torch.zeros(6, 4, 3, 3)).shape
    torch.Size([9, 6, 4])
    """

    shape: tuple[int, ...]
    inputs_first: int = 0
    stack: bool = False
    groups: int = 1

    def matrices(self, tensor: Tensor) -> Tensor:
        """Return the weight (or its mask, or its scores) as (positions of the kernel or experts, outputs, inputs)."""
        if tensor.dim() < 2:
            return tensor.reshape(1, 1, -1)
        if self.stack:
            return tensor.mT if self.inputs_first else tensor
        if self.inputs_first:  # (groups · inputs, outputs, kernel…) → (groups · outputs, inputs, kernel…)
            grouped: Tensor = tensor.unflatten(0, (self.inputs_first, -1))
            tensor = grouped.transpose(1, 2).flatten(0, 1)
        return tensor.flatten(2).permute(2, 0, 1) if tensor.dim() > 2 else tensor.unsqueeze(0)

    def tensor(self, matrices: Tensor) -> Tensor:
        """Return a tensor of ``shape`` from what `matrices` returned."""
        if len(self.shape) < 2:
            return matrices.reshape(self.shape)
        if self.stack:
            return matrices.mT if self.inputs_first else matrices
        groups = max(self.inputs_first, 1)
        first = self.shape[1] if self.inputs_first else self.shape[0] // groups  # outputs of one group
        back = matrices.permute(1, 2, 0)  # (outputs, inputs, positions)
        if self.inputs_first:
            back = back.unflatten(0, (groups, first)).transpose(1, 2).flatten(0, 1)
        return back.reshape(self.shape)

    def unit_sums(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each weight, the sums over all weights that enter its output and over all that leave its input.

        Takes what `matrices` returned; both results can be broadcast to its shape.
        """
        if self.stack:  # each matrix has units of its own
            return matrices.sum(2, keepdim=True), matrices.sum(1, keepdim=True)
        groups = max(self.inputs_first, self.groups)
        leaving: Tensor = matrices.sum(0).unflatten(0, (groups, -1)).sum(1)  # (groups, inputs of one)
        return matrices.sum((0, 2))[:, None], leaving.repeat_interleave(matrices.shape[1] // groups, 0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Positions of the kernel, outputs, inputs (of one group)."""
        total = 1
        for size in self.shape:
            total *= size
        if len(self.shape) < 2:
            return 1, 1, total
        if self.stack:
            count, *matrix = self.shape
            outputs, inputs = reversed(matrix) if self.inputs_first else matrix
            return count, outputs, inputs
        groups = max(self.inputs_first, 1)
        outputs, inputs = self.shape[:2]
        if self.inputs_first:
            outputs, inputs = self.shape[1] * groups, self.shape[0] // groups
        return total // (outputs * inputs) if outputs * inputs else 0, outputs, inputs


def weight_views(shapes: Mapping[str, tuple[int, ...]], module: nn.Module | None = None) -> dict[str, WeightView]:
    """Return the view of each named weight; without the module that owns them, outputs are assumed to come first."""
    owners: dict[str, nn.Module] = {}
    if module is not None:
        for path, part in unwrap(module).named_modules(remove_duplicate=False):
            owners |= {f"{path}.{key}".lstrip("."): part for key in part._parameters}
    return {name: _view(tuple(shape), owners.get(name)) for name, shape in shapes.items()}


def _view(shape: tuple[int, ...], owner: nn.Module | None) -> WeightView:
    if owner is None:
        return WeightView(shape)
    if isinstance(owner, _ConvTransposeNd):
        return WeightView(shape, owner.groups)
    if isinstance(owner, _ConvNd):
        return WeightView(shape, groups=owner.groups)
    return WeightView(shape, int(has_columns_first(owner)), is_stack(owner, shape))
