"""Linear layers that touch the kept weights only, see ``sparse_linear.h``."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary

from ntksap.net.kernels.compiler import call, threads

_SIZES, _LISTS = ("inputs", "outputs", "groups"), ("row", "first", "start", "column")


class Lists(ctypes.Structure):
    """The structure of the same name in ``sparse_linear.h``."""

    _fields_ = (*((name, ctypes.c_int64) for name in _SIZES), *((name, ctypes.c_void_p) for name in _LISTS))


@dataclass(frozen=True)
class Traversal:
    """The kept weights of a matrix (outputs, inputs), in the order in which the kernels walk through them.

    ``tensors`` hold the memory that ``lists`` points to.
    """

    lists: Lists
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Traversals:
    """Plans for the product with the weights, and for the product with their transpose.

    ``kept`` (K,) holds the flat indices of the kept weights in the order of ``forth``; ``order`` (K,) holds, for the
    weights in the order of ``back``, their places in ``forth``; ``shape`` is that of the weights.
    """

    shape: torch.Size
    forth: Traversal
    kept: Tensor
    back: Traversal
    order: Tensor


MOST = 2**31
"""A matrix must have fewer weights than this, since their places are listed in 32 bits."""


def sparse_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor, *, turned: bool = False) -> Tensor:
    """Return x (…, inputs) · Wᵀ + b (…, outputs), of the weights (outputs, inputs) where ``kept`` is True.

    Differentiable once with respect to x, the bias and the kept weights; the derivative of the others is 0, whatever
    it would be. ``turned``: weights and mask are (inputs, outputs), as in GPT-2 of transformers.
    """
    if x.shape[-1] != weight.shape[0 if turned else 1]:
        raise RuntimeError(f"weights of shape {tuple(weight.shape)} do not fit inputs of {x.shape[-1]} numbers")
    traversals = _traversals_of(kept, turned)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        y: Tensor = _SparseLinear.apply(x, weight, bias, traversals)  # type: ignore[no-untyped-call]
        return y
    return _product(x.detach(), _taken(weight.detach(), traversals.kept), bias, traversals.forth)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Return the values (…) at these places (K,), which are flat indices."""
    values, found = values.contiguous(), values.new_empty(len(places))
    call("take", values.dtype, values, found, places, len(places), threads())
    return found


def _product(x: Tensor, values: Tensor, bias: Tensor | None, traversal: Traversal) -> Tensor:
    x, lists = x.contiguous(), traversal.lists
    y = x.new_empty(*x.shape[:-1], lists.outputs)
    bias = None if bias is None else bias.detach().contiguous()
    call("sparse_linear", x.dtype, lists, x.shape[:-1].numel(), x, y, values, bias, threads())
    return y


def _by_weight(x: Tensor, g: Tensor, traversals: Traversals) -> Tensor:
    values, lists = x.new_zeros(len(traversals.kept)), traversals.forth.lists
    call("sparse_linear_by_value", x.dtype, lists, x.shape[:-1].numel(), x.contiguous(), g, values, threads())
    found = x.new_zeros(traversals.shape)
    call("put", x.dtype, values, found, traversals.kept, len(values), threads())
    return found


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, traversals: Traversals) -> Tensor:
        values = _taken(weight, traversals.kept)
        ctx.save_for_backward(x, values)
        ctx.traversals = traversals
        return _product(x, values, bias, traversals.forth)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, values), traversals, g = ctx.saved_tensors, ctx.traversals, gradients[0].contiguous()
        by_x, by_weight, by_bias, _ = ctx.needs_input_grad
        return (
            _product(g, _taken(values, traversals.order), None, traversals.back) if by_x else None,
            _by_weight(x, g, traversals) if by_weight else None,
            g.reshape(-1, g.shape[-1]).sum(0) if by_bias else None,
            None,
        )


def _traversals_of(kept: Tensor, turned: bool) -> Traversals:
    """Return the traversals for a mask, from memory if this very tensor was asked for before."""
    found, key = _traversals.get(kept), (kept._version, turned)
    if found is None or found[0] != key:
        found = _traversals[kept] = (key, _make(kept.bool().contiguous(), turned))
    traversals: Traversals = found[1]
    return traversals


_traversals: Any = WeakIdKeyDictionary()


def _make(mask: Tensor, turned: bool) -> Traversals:
    (forth, kept), (back, again) = _walk(mask, by_row=not turned), _walk(mask, by_row=turned)
    places = torch.empty(mask.numel(), dtype=torch.int32, device="cpu")
    places[kept.long()] = torch.arange(len(kept), dtype=torch.int32, device="cpu")
    return Traversals(mask.shape, forth, kept, back, places[again.long()])


def _walk(mask: Tensor, *, by_row: bool) -> tuple[Traversal, Tensor]:
    """Return the traversal for a product whose outputs are the rows or columns of the mask, and where weights are."""
    (outputs, inputs), count = mask.shape if by_row else mask.shape[::-1], int(mask.count_nonzero())
    row, first, start = torch.empty(3, outputs + 1, dtype=torch.long, device="cpu")
    (column, index), groups = torch.empty(2, count, dtype=torch.int32, device="cpu"), ctypes.c_int64()
    steps = (inputs, 1) if by_row else (1, outputs)
    call("linear_plan", None, mask, outputs, inputs, *steps, groups, row, first, start, column, index)
    tensors = (row, first, start, column)
    return Traversal(Lists(inputs, outputs, groups.value, *(tensor.data_ptr() for tensor in tensors)), tensors), index
