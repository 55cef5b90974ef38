"""Operators that reduce axes, or that mix the entries along one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntksap.compaction.ids import Axes, fixed
from ntksap.compaction.rules.table import Operator, rule


@rule("sum", "mean", "amax", "amin", "var", "std", "prod", "logsumexp", "linalg_vector_norm", "norm", "max", "min",
      "argmax", "argmin", "any", "all", "var_mean", "std_mean", "median")  # fmt: skip
def reduction(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Any:
    """Drop the reduced axes. A sum over channels does not change without a channel of zeros; everything else does."""
    dims, keep = reduced_dims(op, x, args, kwargs)
    for dim in dims:
        if op.name != "sum" and op.exact:
            op.freeze(x.ids[dim], "reduced over")
    ids = [np.zeros(1, np.int64) if dim in dims else own for dim, own in enumerate(x.ids) if keep or dim not in dims]
    value = op.node.meta["val"]
    return [Axes(tuple(ids)) for _ in value] if isinstance(value, tuple | list) else Axes(tuple(ids))


def reduced_dims(op: Operator, x: Axes, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[set[int], bool]:
    """Return the reduced dimensions and whether they stay with size 1, by the operator's own schema."""
    given = dict(zip([a.name for a in op.node.target._schema.arguments[1:]], args, strict=False)) | kwargs  # type: ignore[union-attr]
    dims = given.get("dim")
    every = range(len(x.ids))
    listed = every if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    return {dim % max(len(x.ids), 1) for dim in listed}, bool(given.get("keepdim", False))


@rule("softmax", "log_softmax", "_softmax", "cumsum", "cumprod", "logcumsumexp")
def along(op: Operator, x: Axes, dim: int, *args: Any, **kwargs: Any) -> Axes:
    """Mix the entries along one axis."""
    op.freeze(x.ids[dim], "mixed along it")
    return x


POOLING = {
    f"{kind}{n}d": n
    for n in (1, 2, 3)
    for kind in ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool", "reflection_pad",
                 "replication_pad", "upsample_nearest", "upsample_nearest_exact", "_upsample_nearest_exact")
} | {"upsample_bilinear2d": 2, "upsample_bicubic2d": 2, "upsample_linear1d": 1, "upsample_trilinear3d": 3,
     "_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2}  # fmt: skip
"""{operators that work on each channel's image by itself: the number of its dimensions}."""


@rule(*POOLING)
def spatial(op: Operator, x: Axes, *args: Any, **kwargs: Any) -> Any:
    """Work on the last dimensions of each channel."""
    count = POOLING[op.name]
    for ids in x.ids[-count:]:
        op.freeze(ids, "an axis of space")
    value = op.node.meta["val"]
    first = value[0] if isinstance(value, tuple | list) else value
    result = Axes((*x.ids[:-count], *fixed(first.shape[-count:]).ids))
    return [result for _ in value] if isinstance(value, tuple | list) else result
