"""Convolutions and their transposes, plain, grouped and depthwise."""

from typing import Any

import numpy as np
from torch.nn.modules.conv import _ConvNd

from ntksap.compaction.ids import Axes
from ntksap.compaction.rules.table import Operator, rule

KERNEL = "a kernel moves along it"
"""Why the axes of space are frozen, in images and in kernels."""


@rule("conv1d", "conv2d", "conv3d")
def convolution(
    op: Operator, x: Axes, weight: Axes, bias: Axes | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Axes:  # fmt: skip
    """``x (N, C, …)`` with ``weight (O, C ÷ groups, …)``."""
    inside, outside = x.ids[_channel(x, weight)], weight.ids[0]
    _check_groups(op, groups, inside, outside)
    if groups == 1:
        op.unite(inside, weight.ids[1])
    elif op.apart:
        pass  # its outputs are no inputs, and nothing has to stay the same size
    elif weight.shape[1] == 1:  # depthwise: a group is one input channel and goes with it
        op.freeze(weight.ids[1], "a depthwise kernel has one input")
        op.unite(np.repeat(inside, weight.shape[0] // groups), outside)
    else:  # the same places of every group, so that groups stay the same size
        op.unite(op.unite_rows(inside.reshape(groups, -1)), weight.ids[1])
        op.unite_rows(outside.reshape(groups, -1))
    return _result(op, x, weight, bias, outside)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(
    op: Operator, x: Axes, weight: Axes, bias: Axes | None = None,
    stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Axes:  # fmt: skip
    """``x (N, C, …)`` with ``weight (C, O ÷ groups, …)``."""
    inside = x.ids[_channel(x, weight)]
    _check_groups(op, groups, inside, weight.ids[1])
    op.unite(inside, weight.ids[0])
    if groups == 1:
        outside = weight.ids[1]
    elif op.apart:
        outside = op.units.new(groups * weight.shape[1])
    elif weight.shape[0] == groups:
        op.freeze(weight.ids[1], "a depthwise kernel keeps its outputs for each input")
        outside = np.repeat(inside, weight.shape[1])
    else:
        op.unite_rows(inside.reshape(groups, -1))
        outside = np.tile(weight.ids[1], groups)
    return _result(op, x, weight, bias, outside)


def _channel(x: Axes, weight: Axes) -> int:
    return len(x.ids) - len(weight.ids) + 1


def _check_groups(op: Operator, groups: int, *channels: Any) -> None:
    """Freeze channels in groups whose number is not an attribute of a layer, and so cannot follow."""
    if groups > 1 and not isinstance(op.owner, _ConvNd):
        for ids in channels:
            op.freeze(ids, "a convolution in groups that is not a layer of torch.nn")


def _result(op: Operator, x: Axes, weight: Axes, bias: Axes | None, outside: Any) -> Axes:
    if bias is not None:
        op.unite(outside, bias.ids[0])
    channel = _channel(x, weight)
    for ids in (*x.ids[channel + 1 :], *weight.ids[2:]):
        op.freeze(ids, KERNEL)
    shape = op.node.meta["val"].shape
    spatial = (np.zeros(int(size), np.int64) for size in shape[channel + 1 :])
    return Axes((*x.ids[:channel], outside, *spatial))
