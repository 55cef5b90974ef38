"""Attention at initialisation: nearly uniform averages, whose deviations carry what queries and keys change."""

import math
from typing import Any

import torch
from torch import Tensor

from ntksap.methods.moments.linear import add, addmm, linear, mul, product
from ntksap.methods.moments.table import moments_of, rule
from ntksap.methods.moments.uniform import thin, thin_batch, widened
from ntksap.methods.moments.value import FIELDS, MASKED, Moments, Weight

_CLOSED = -99.0
"""Logits below this have no share: some masks are −100."""


@rule("softmax")
def softmax(x: Moments, dim: int = -1, *args: Any, **kwargs: Any) -> Moments:
    """To first order in the logits, p_j = (1 + x_j − x̄)/n over the n entries that no mask leaves out; approximate.

    Two inputs have at most as much in common as one has with itself: where inputs are tokens, they share everything.
    """
    shape = x.shape
    x = thin_batch(x) if dim in (-1, len(shape) - 1) else x
    open_ = (x.mean > _CLOSED).to(x.square)
    share = open_ / open_.sum(dim, keepdim=True).clamp_min(1)
    certain = share.square()
    return widened(
        Moments(
            certain * (1 + x.variance),
            certain * (1 + torch.minimum(x.cross, x.variance)),
            certain * x.tangent,
            certain * x.tangent_cross,
            share,
        ),
        shape,
    )


@rule("matmul")
def matmul(a: Any, other: Any) -> Moments:
    """Products of independent factors; a factor with a mean (attention) also sums what the other's positions share."""
    if isinstance(other, Weight) and other.mask.dim() == 2:
        return addmm(None, a, other)
    like = (a if isinstance(a, Moments) else other).like
    a, b = (moments_of(part) for part in (a, other))
    a, b = (part if part.like.dtype == like.dtype else part.each(lambda field: field.to(like)) for part in (a, b))
    if min(len(a.shape), len(b.shape)) < 2:
        return add_shared(product(torch.matmul, a, b), a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = torch.Size([*batch, a.shape[-2], b.shape[-1]])
    a, b = thin_batch(a), thin_batch(b)
    return widened(add_shared(product(torch.matmul, a, b), a, b), shape)


@rule("bmm")
def bmm(a: Any, mat2: Any) -> Moments:
    """Like `matmul`."""
    return matmul(a, mat2)


@rule("baddbmm")
def baddbmm(bias: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Moments:
    """β·bias + α·a @ b."""
    products = mul(matmul(batch1, batch2), alpha)
    return add(products, mul(bias, beta)) if beta else products


@rule("einsum")
def einsum(equation: str, *operands: Any) -> Moments:
    """For two factors, a product of independent ones."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    if len(operands) != 2:
        raise NotImplementedError(f"there is a rule for two factors, not for {len(operands)}")
    like = next(part.like for part in operands if isinstance(part, Moments))
    a, b = (moments_of(part) for part in operands)
    a, b = (Moments(*(getattr(part, name).to(like) for name in FIELDS)) for part in (a, b))
    return product(lambda x, y: torch.einsum(equation, x, y), a, b)


def add_shared(y: Moments, a: Moments, b: Moments) -> Moments:
    """E[(Σ_j a_j b_j)²] has Σ_{j≠i} E a_i E a_j · E[b_i b_j] besides the squares, the last factor being b's cross."""

    def shared(cross: Tensor) -> Tensor:
        level = cross.clamp_min(1e-300).sqrt()
        return (torch.matmul(a.mean, level).square() - torch.matmul(a.mean.square(), cross)).clamp_min(0)

    return Moments(
        y.square + shared(b.cross), y.cross + shared(b.cross), y.tangent + shared(b.tangent_cross),
        y.tangent_cross + shared(b.tangent_cross), y.mean,
    )  # fmt: skip


@rule("rmatmul")
def rmatmul(a: Any, other: Any) -> Moments:
    """b @ a."""
    return matmul(other, a)


@rule("scaled_dot_product_attention")
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Moments:
    """softmax(Q Kᵀ · scale + mask) V, with the rules of its parts."""
    query, key, value = moments_of(query), moments_of(key), moments_of(value)
    if enable_gqa:
        repeats = query.square.shape[-3] // key.square.shape[-3]
        key, value = (part.each(lambda f: f.repeat_interleave(repeats, -3)) for part in (key, value))
    factor = scale if scale is not None else 1 / math.sqrt(query.square.shape[-1])
    logits = mul(matmul(query, key.each(lambda field: field.transpose(-2, -1))), factor)
    shape = logits.square.shape
    if is_causal:
        attn_mask = torch.ones(shape[-2:], dtype=torch.bool, device=logits.square.device).tril()
    if attn_mask is not None:
        mask: Tensor = attn_mask.mean if isinstance(attn_mask, Moments) else attn_mask
        left_out = thin(~mask if mask.dtype == torch.bool else mask < MASKED, range(mask.dim() - 2))
        one = thin_batch(logits)
        mean = one.mean.expand(torch.broadcast_shapes(one.mean.shape, left_out.shape)).masked_fill(left_out, -math.inf)
        logits = widened(Moments(one.square, one.cross, one.tangent, one.tangent_cross, mean), shape)
    return matmul(softmax(logits), value)


@rule("multi_head_attention_forward")
def multi_head_attention(
    query: Moments, key: Moments, value: Moments, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = False, key_padding_mask: Tensor | None = None, need_weights: bool = True,
    attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False, q_proj_weight: Any = None,
    k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Moments, Moments | None]:  # fmt: skip
    """nn.MultiheadAttention (L, N, E) by its parts; padding masks, extra and static keys are ignored."""
    weights = [q_proj_weight, k_proj_weight, v_proj_weight] if use_separate_proj_weight else _thirds(in_proj_weight)
    biases = _thirds(in_proj_bias) if in_proj_bias is not None else [None] * 3
    parts = [linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
    batched = query.square.dim() == 3

    def divide(field: Tensor) -> Tensor:  # (L, N, E) -> (N, heads, L, E/heads)
        field = field if batched else field.unsqueeze(1)
        return field.view(*field.shape[:-1], num_heads, -1).permute(1, 2, 0, 3)

    def join(field: Tensor) -> Tensor:
        field = field.permute(2, 0, 1, 3).flatten(2)
        return field if batched else field.squeeze(1)

    q, k, v = (part.each(divide) for part in parts)
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.unflatten(0, (-1, num_heads))
    mixed = attention(q, k, v, attn_mask, is_causal=is_causal and attn_mask is None).each(join)
    return linear(mixed, out_proj_weight, out_proj_bias), None


def _thirds(stacked: Any) -> list[Moments]:
    return [moments_of(stacked).each(lambda field, i=i: field.chunk(3)[i]) for i in range(3)]  # type: ignore[misc]
