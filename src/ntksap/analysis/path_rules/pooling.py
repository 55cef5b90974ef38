"""Pooling: every entry of a window leads to its output, whether their mean is taken or the largest."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from ntksap._base import InputError
from ntksap.analysis.path_rules.counts import RULES, Counts, counts


def _pool(dims: int) -> Callable[..., Counts]:
    """Return the rule of average pooling: every entry of a window leads to its output."""

    def rule(
        x: Counts, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, *args: Any, **_: Any
    ) -> Counts:
        def sizes(size: Any, beside: int) -> Any:
            return (beside, *((size,) if isinstance(size, int) else size)) if dims == 1 else size

        flat = x.unsqueeze(-2) if dims == 1 else x
        pool: Any = functional.avg_pool3d if dims == 3 else functional.avg_pool2d
        steps = sizes(stride, 1) if stride is not None and stride != [] else None
        found = pool(flat, sizes(kernel_size, 1), steps, sizes(padding, 0), ceil_mode, True, 1)
        return counts(found.squeeze(-2) if dims == 1 else found, x.exponent, path=x.path)

    return rule


def _max_pool(dims: int) -> Callable[..., Counts]:
    def rule(
        x: Counts,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Counts:
        if return_indices or any(step != 1 for step in tree_leaves(dilation)):
            raise InputError("paths cannot be followed through max-pooling with dilation or indices")
        return _pool(dims)(x, kernel_size, stride, padding, ceil_mode)

    return rule


def _adaptive(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    """Return the rule of pooling to a given size: means, times the number of entries in each window."""

    def rule(x: Counts, output_size: Any, *args: Any, **kwargs: Any) -> Counts:
        found = func(x, output_size)
        for axis in range(-_SPATIAL[func], 0):
            size, windows = x.shape[axis], found.shape[axis]
            lengths = [-(-(i + 1) * size // windows) - i * size // windows for i in range(windows)]
            found = found * torch.tensor(lengths, dtype=found.dtype, device=found.device).view(-1, *[1] * (-axis - 1))
        return counts(found, x.exponent, path=x.path)

    return rule


_SPATIAL: dict[Any, int] = {
    functional.adaptive_avg_pool1d: 1, functional.adaptive_avg_pool2d: 2, functional.adaptive_avg_pool3d: 3,
}  # fmt: skip

RULES.update({
    **{f"avg_pool{n}d": _pool(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _max_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": _adaptive(func) for func, n in _SPATIAL.items() for kind in ("avg", "max")},
})  # fmt: skip
