"""Attention as one operator."""

from typing import Any

import numpy as np

from ntksap.compaction.ids import Axes
from ntksap.compaction.rules.elementwise import broadcast
from ntksap.compaction.rules.table import Operator, rule


@rule("scaled_dot_product_attention")
def attention(
    op: Operator, query: Axes, key: Axes, value: Axes, mask: Axes | None = None, dropout: float = 0.0,
    causal: bool = False, *, attn_mask: Axes | None = None, scale: float | None = None, enable_gqa: bool = False,
    **more: Any,
) -> Axes:  # fmt: skip
    """``softmax(query · keyᵀ · scale) · value``: heads (all leading axes) go one by one, in whole groups of queries.

    The size of a head decides the scale unless that is given, so it stays as it is in any case.
    """
    for ids in (query.ids[-1], key.ids[-1], query.ids[-2], key.ids[-2], value.ids[-2]):
        op.freeze(ids, "inside a head")
    heads = [query.ids[:-2], key.ids[:-2], value.ids[:-2]]
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        for which in (1, 2):
            heads[which] = (*heads[which][:-1], np.repeat(heads[which][-1], repeats))
    given = mask if mask is not None else attn_mask
    if given is not None:
        scores = Axes((*query.ids[:-2], np.zeros_like(query.ids[-2]), np.zeros_like(key.ids[-2])))
        broadcast(op, [scores, given])
    leading = broadcast(op, [Axes(ids) for ids in heads])
    return Axes((*leading.ids, query.ids[-2], value.ids[-1]))
