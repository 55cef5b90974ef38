"""The names of torch's functions, and which of them need no values or ask for nothing else."""

from typing import Any

import torch

ORDERS: dict[Any, str] = {torch.batch_norm: "torch.batch_norm", torch.instance_norm: "torch.instance_norm"}
"""Functions whose arguments are in a different order from those of their namesakes."""

ALIASES = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__isub__": "sub", "__rsub__": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul", "__truediv__": "div",
    "__itruediv__": "div", "true_divide": "div", "divide": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv",
    "__div__": "div", "__matmul__": "matmul", "__rmatmul__": "rmatmul", "__pow__": "pow", "__rpow__": "rpow",
    "__neg__": "neg", "subtract": "sub", "negative": "neg", "absolute": "abs", "__abs__": "abs", "concat": "cat",
    "concatenate": "cat", "special_expit": "sigmoid", "special_erf": "erf", "clip": "clamp", "_softmax": "softmax",
    "special_softmax": "softmax", "mm": "bmm", "arctan": "atan", "moveaxis": "movedim", "fix": "trunc",
}  # fmt: skip
"""Several names of one function."""

METADATA = {
    "__get__", "__set__", "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_contiguous",
    "is_floating_point", "is_complex", "__len__", "get_device", "_is_view", "requires_grad_", "is_shared", "__repr__",
    "storage_offset", "is_signed", "is_pinned", "is_same_size", "data_ptr", "__hash__", "register_hook",
    "is_inference", "is_nonzero_static", "retain_grad",
}  # fmt: skip
"""Answered from shape, dtype and device."""

CREATES = {
    "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "zeros_like", "ones_like", "full_like",
    "empty_like",
}  # fmt: skip
"""Make a new tensor like another; its values are known."""

LIKE = {"expand_as", "view_as", "reshape_as", "type_as"}
"""Take a shape or a dtype from another tensor."""

VALUES = {
    "item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__contains__", "nonzero", "equal",
    "allclose", "isclose", "gt", "lt", "ge", "le", "eq", "ne", "greater", "less", "greater_equal", "less_equal",
    "not_equal", "__gt__", "__lt__", "__ge__", "__le__", "__eq__", "__ne__", "isnan", "isinf", "isfinite", "any", "all",
    "argmax", "argmin", "argsort", "sort", "topk", "unique", "bincount", "histc", "multinomial", "searchsorted",
    "bucketize", "one_hot", "sign", "round", "floor", "ceil", "trunc", "long", "int", "bool", "short", "isin",
    "masked_select", "median", "mode", "kthvalue", "gumbel_softmax", "bernoulli", "logical_and", "logical_or",
    "logical_not", "count_nonzero",
}  # fmt: skip
"""Ask for values, of which only moments are known, or bend at them so that moments say nothing."""

FIRST = ("input", "tensors", "self", "tensor")
"""What the first argument is called where it is given by name."""
