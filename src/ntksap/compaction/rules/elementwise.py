"""Operators that combine entries at the same place: ids are united, with broadcasting."""

from collections.abc import Sequence
from typing import Any

from ntksap.compaction.ids import Axes
from ntksap.compaction.rules.table import Operator, rule

UNARY = [
    "relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "selu", "celu", "hardswish",
    "hardsigmoid", "hardtanh", "softplus", "mish", "softsign", "logsigmoid", "log_sigmoid", "exp", "log", "sqrt",
    "rsqrt", "abs", "neg", "square", "sin", "cos", "erf", "pow", "reciprocal", "sign", "clamp", "clamp_min",
    "clamp_max", "dropout", "feature_dropout", "alpha_dropout", "clone", "contiguous", "alias", "detach", "to",
    "_to_copy", "type_as", "float", "double", "half", "bfloat16", "zeros_like", "ones_like", "full_like",
    "empty_like", "expm1", "log1p", "tan", "atan", "asin", "acos", "sinh", "cosh", "floor", "ceil", "round", "trunc",
    "threshold", "hardshrink", "softshrink", "tanhshrink", "bitwise_not", "logical_not", "isnan", "isinf", "isfinite",
    "nan_to_num", "lift_fresh_copy", "rrelu", "bool", "log2", "log10", "exp2", "positive", "fill", "copy",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "rsub", "maximum", "minimum", "fmod", "remainder", "where", "addcmul", "addcdiv",
    "lerp", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "logical_and",
    "logical_or", "__and__", "__or__", "xlogy", "atan2", "true_divide", "multiply", "subtract", "divide",
    "floor_divide",
]  # fmt: skip


@rule(*UNARY, *BINARY)
def elementwise(op: Operator, *args: Any, **kwargs: Any) -> Axes:
    """Unite the axes of all tensors; a size of 1 is broadcast, so nothing can be removed from it."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Axes)]
    return broadcast(op, tensors)


def broadcast(op: Operator, tensors: Sequence[Axes]) -> Axes:
    """Return the axes of the common shape of ``tensors``, in which ids at the same index are united."""
    depth = max(len(axes.ids) for axes in tensors)
    result = []
    for back in range(depth, 0, -1):
        present = [axes.ids[-back] for axes in tensors if len(axes.ids) >= back]
        size = max((len(ids) for ids in present), default=1)
        if any(len(ids) == 0 for ids in present):
            size = 0
        full = [ids for ids in present if len(ids) == size]
        for ids in present:
            if len(ids) != size:
                op.freeze(ids, "it is broadcast")
        for other in full[1:]:
            op.unite(full[0], other)
        result.append(next((ids for ids in full if ids.any()), full[0]))
    return Axes(tuple(result))


@rule("prelu")
def prelu(op: Operator, x: Axes, weight: Axes) -> Axes:
    """Multiply the negative side by a slope for each channel, or one for all."""
    if weight.shape[0] == 1:
        op.freeze(weight.ids[0], "it is broadcast")
    else:
        op.unite(x.ids[1], weight.ids[0])
    return x


@rule("glu")
def glu(op: Operator, x: Axes, dim: int = -1) -> Axes:
    """Multiply the first half of an axis by the sigmoid of the second."""
    halves = x.ids[dim].reshape(2, -1)
    return x.replaced(dim, op.unite_rows(halves))
