"""Attention: a query, a key and a value for each path, where the masks let them meet."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntksap._base import InputError
from ntksap.analysis.path_rules.counts import BLOCKED, RULES, Counts, counts, layer, moved, mul, product


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Counts:
    """(…, L, E), (…, S, E), (…, S, V) → (…, L, V): a query, a key and a value, where the mask allows it."""
    if enable_gqa:
        key, value = (
            moved(torch.repeat_interleave, (x, query.shape[-3] // x.shape[-3]), {"dim": -3}) for x in (key, value)
        )
    logits = product(torch.matmul)(query, moved(torch.transpose, (key, -2, -1), {}))
    meet = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
    meet = meet.tril() if is_causal else meet
    if attn_mask is not None:
        meet = meet & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > BLOCKED)
    return product(torch.matmul)(mul(logits, meet), value)


def _multi_head(*args: Any, **kwargs: Any) -> tuple[Counts, None]:
    """(L, N, E) → (L, N, E), as ``nn.MultiheadAttention`` calls it."""
    given = _MULTI_HEAD.bind(*args, **kwargs)
    given.apply_defaults()
    of = given.arguments
    if of["bias_k"] is not None:
        raise InputError("paths cannot be followed through nn.MultiheadAttention with add_bias_kv")
    heads, batched = of["num_heads"], of["query"].dim() == 3
    if of["use_separate_proj_weight"]:
        weights = [of[f"{name}_proj_weight"] for name in "qkv"]
    else:
        packed = of["in_proj_weight"]
        weights = [counts(one, packed.exponent, path=False) for one in packed.chunk(3)]

    def split(x: Counts, weight: Counts) -> Counts:  # (L, N, E) → (N, heads, L, E ÷ heads)
        made = layer(functional.linear)(x, weight)
        return moved(  # type: ignore[no-any-return]
            lambda t: (t if batched else t.unsqueeze(1)).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3), (made,), {}
        )

    query, key, value = (split(of[name], w) for name, w in zip(("query", "key", "value"), weights, strict=True))
    blocked = torch.zeros((), dtype=torch.bool, device=query.device)
    if (mask := of["attn_mask"]) is not None:  # (L, S) or (N · heads, L, S)
        blocked = blocked | _blocked(mask if mask.dim() == 2 else mask.unflatten(0, (-1, heads)))
    if (mask := of["key_padding_mask"]) is not None:  # (N, S) or (S)
        blocked = blocked | _blocked(mask).view(-1, 1, 1, mask.shape[-1])
    attended = _attention(query, key, value, ~blocked, is_causal=of["is_causal"] and of["attn_mask"] is None)
    joined = moved(lambda t: t.permute(2, 0, 1, 3).flatten(2), (attended,), {})
    result = layer(functional.linear)(joined, of["out_proj_weight"])
    return (result if batched else moved(torch.squeeze, (result, 1), {})), None


_MULTI_HEAD = inspect.signature(functional.multi_head_attention_forward)


def _blocked(mask: Tensor) -> Tensor:
    """Return where a mask of ``nn.MultiheadAttention`` lets nothing through: True, or a very negative summand."""
    return mask if mask.dtype == torch.bool else mask <= BLOCKED


RULES.update({"scaled_dot_product_attention": _attention, "multi_head_attention_forward": _multi_head})
