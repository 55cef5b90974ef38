"""Convolutions that touch the kept weights only."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from ntksap.native.compiler import available, call, shares

DENSE = 0.45
"""The density above which torch's dense convolution is faster, with channels last; otherwise see `_faster`."""

LINE = 128
"""Images whose width is no multiple of a vector are stacked until a line has about so many numbers."""

_FIELDS = (
    "channels height width outputs out_height out_width stride_y stride_x pad_y pad_x rows pitch stack slack plane grad"
)


class Shape(ctypes.Structure):
    """The structure of the same name in ``sparse_conv.h``."""

    _fields_ = tuple((name, ctypes.c_int64) for name in _FIELDS.split())


@dataclass(frozen=True)
class Plan:
    """The kept weights of one convolution for one size of images, in the order in which the kernels walk through them.

    ``kept`` (K,) are the flat indices of the kept weights, sorted by output; ``order`` (K,) sorts these by the plane of
    the input that they look at. See ``sparse_conv.h`` for the rest.
    """

    shape: Shape
    kept: Tensor
    order: Tensor
    first: Tensor
    where: Tensor
    back_first: Tensor
    back_where: Tensor


Size: TypeAlias = int | Sequence[int]


def conv2d(
    x: Tensor, weight: Tensor, kept: Tensor, stride: Size = 1, padding: Any = 0, dilation: Size = 1, groups: int = 1
) -> Tensor:
    """Return torch's convolution without a bias, of the kept weights alone where that can be done and is faster.

    Weights that are not kept must be zero; where only kept ones are touched, their derivatives are 0.
    """
    usable = x.dim() == 4 and x.dtype == weight.dtype and not isinstance(padding, str) and available(x, weight)
    if usable and not transformed(x, weight) and _faster(kept, _geometry(x, stride, padding, dilation, groups)):
        return sparse_conv2d(x, weight, kept, stride, padding, dilation, groups)
    return functional.conv2d(x, weight, None, stride, padding, dilation, groups)


def sparse_conv2d(
    x: Tensor, weight: Tensor, kept: Tensor, stride: Size = 1, padding: Size = 0, dilation: Size = 1, groups: int = 1
) -> Tensor:
    """Return the convolution of x (N, C, H, W) with the weights where ``kept`` is True.

    Differentiable once by x and by the kept weights; the derivative by the others is 0, whatever it would be.
    """
    plan = _plan(kept, _geometry(x, stride, padding, dilation, groups))
    y: Tensor = _SparseConv.apply(x.contiguous(), weight, plan)  # type: ignore[no-untyped-call]
    return y


def by_kept_weights(
    x: Tensor, g: Tensor, kept: Tensor, stride: Size = 1, padding: Any = 0, dilation: Size = 1, groups: int = 1
) -> Tensor | None:
    """Return ∂⟨g_i, x ∗ w⟩/∂w (k, K) by the K kept weights, for one x (1, C, H, W) and each of g (k, C', H', W').

    None where dense kernels are faster or nothing here can be done.
    """
    geometry = _geometry(x, stride, padding, dilation, groups)
    if transformed(x, g) or not available(x, g) or x.dtype != g.dtype or not _faster(kept, geometry):
        return None
    plan, x, g = _plan(kept, geometry), x.contiguous(), g.contiguous()
    found = x.new_zeros(len(g), len(plan.kept))
    lists = (plan.first, plan.where, plan.back_first, plan.back_where, None)
    for one, to in zip(g, found, strict=True):
        call("sparse_conv_backward", x.dtype, [(plan.shape, 1, x, one, None, to, *lists)])
    return found


class SparseConv2d(nn.Conv2d):
    """What a convolution becomes for a while, see `ntksap.native.layers`."""

    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) → (N, C', H', W')."""
        y = conv2d(x, self.weight, self.kept, self.stride, self.padding, self.dilation, self.groups)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)


def suits(layer: nn.Conv2d) -> bool:
    """Whether these kernels can do the layer's work."""
    plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return plain and available(layer.weight)


def few(kept: Tensor) -> bool:
    """Whether so few weights are kept that these kernels are faster than dense ones of torch at their best."""
    return bool(kept.count_nonzero() <= DENSE * kept.numel())


def _faster(kept: Tensor, geometry: Any) -> bool:
    """Whether these kernels are faster, for images that have their channels first.

    Torch's dense ones are slow at that on wide images of few channels. Of small odd images, much is padding here.
    """
    shape = _shape(tuple(kept.shape), geometry)
    planes = shape.channels * shape.stride_y * shape.stride_x * shape.plane
    if max(planes, shape.outputs * shape.grad) >= 2**31:  # places are listed in 32 bits
        return False
    if shape.out_width % 16 == 0:
        pays_off = max(1.0, (128 / shape.channels) ** 0.5)  # measured: at any density with 16 channels
    elif shape.out_width % 8 == 0:
        pays_off = 1.0
    else:
        pays_off = shape.out_height * shape.out_width / (shape.rows * shape.pitch)
    return bool(kept.count_nonzero() <= DENSE * pays_off * kept.numel())


def _plan(kept: Tensor, geometry: Any) -> Plan:
    """Return the plan for a mask (C', C ÷ groups, h, w), from memory if this very tensor was asked for before."""
    plans = _plans.setdefault(kept, {})
    key = (geometry, kept._version)
    if key not in plans:
        plans[key] = _make(kept.bool().contiguous(), geometry)
    made: Plan = plans[key]
    return made


_plans: Any = WeakIdKeyDictionary()


def _geometry(x: Tensor, stride: Size, padding: Size, dilation: Size, groups: int) -> Any:
    pairs = ((size, size) if isinstance(size, int) else tuple(size) for size in (stride, padding, dilation))
    return *pairs, groups, tuple(x.shape[1:])


def _shape(weight: tuple[int, ...], geometry: Any) -> Shape:
    (stride_y, stride_x), (pad_y, pad_x), (apart_y, apart_x), groups, (channels, height, width) = geometry
    outputs, per_group, high, wide = weight
    reach_y, reach_x = (high - 1) * apart_y, (wide - 1) * apart_x
    out_height = (height + 2 * pad_y - reach_y - 1) // stride_y + 1
    out_width = (width + 2 * pad_x - reach_x - 1) // stride_x + 1
    if channels != groups * per_group or min(out_height, out_width) < 1:
        raise RuntimeError(f"weights of shape {weight} do not fit images of {channels}×{height}×{width}")
    rows, pitch = -(-(height + 2 * pad_y) // stride_y), -(-(width + 2 * pad_x) // stride_x)
    stack = 1 if out_width % 8 == 0 else max(1, LINE // (rows * pitch))
    slack = reach_y // stride_y * pitch + reach_x // stride_x
    size = stack * rows * pitch + 16  # vectors reach beyond the end
    return Shape(
        channels, height, width, outputs, out_height, out_width, stride_y, stride_x, pad_y, pad_x,
        rows, pitch, stack, slack, size, slack + size,
    )  # fmt: skip


def _make(kept: Tensor, geometry: Any) -> Plan:
    shape, count = _shape(tuple(kept.shape), geometry), int(kept.count_nonzero())
    planes = shape.channels * shape.stride_y * shape.stride_x
    index, order = torch.empty(2, count, dtype=torch.long)
    where, back_where = torch.empty(2, count, dtype=torch.int32)
    first, back_first = torch.empty(shape.outputs + 1, dtype=torch.long), torch.zeros(planes + 1, dtype=torch.long)
    numbers = (geometry[3], *kept.shape[2:], *geometry[2])
    call("sparse_plan", None, [(shape, kept, *numbers, index, first, where, back_first, order, back_where)])
    return Plan(shape, index, order, first, where, back_first, back_where)


def transformed(*tensors: Tensor) -> bool:
    """Whether a tensor has rules of its own, or is inside a transformation of torch.func or forward mode."""
    return torch.overrides.has_torch_function(tensors) or any(
        torch._C._functorch.is_functorch_wrapped_tensor(t)
        or torch.autograd.forward_ad.unpack_dual(t).tangent is not None
        for t in tensors
    )


class _SparseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, plan: Plan) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.plan = plan
        shape, values = plan.shape, weight.detach().flatten()[plan.kept]
        y = x.new_empty(len(x), shape.outputs, shape.out_height, shape.out_width)
        lists = (plan.first, plan.where, values, plan.back_first)
        call("sparse_conv", x.dtype, [(shape, b - a, x[a:], y[a:], *lists) for a, b in shares(len(x))])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), plan, g = ctx.saved_tensors, ctx.plan, gradients[0].contiguous()
        parts = shares(len(x))
        values = weight.detach().flatten()[plan.kept][plan.order]
        by_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        by_values = x.new_zeros(len(parts), len(values)) if ctx.needs_input_grad[1] else None
        lists = (plan.first, plan.where, plan.back_first, plan.back_where, values)

        def task(index: int, a: int, b: int) -> tuple[object, ...]:
            to_x = by_x[a:] if by_x is not None else None
            to_values = by_values[index] if by_values is not None else None
            return (plan.shape, b - a, x[a:], g[a:], to_x, to_values, *lists)

        call("sparse_conv_backward", x.dtype, [task(index, *part) for index, part in enumerate(parts)])
        by_weight = None
        if by_values is not None:
            by_weight = x.new_zeros(weight.numel()).index_copy_(0, plan.kept, by_values.sum(0)).view(weight.shape)
            by_weight = torch.empty_like(weight).copy_(by_weight)  # in the weight's own layout, as DDP wants it
        return by_x, by_weight, None
