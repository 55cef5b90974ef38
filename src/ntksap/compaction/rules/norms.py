"""Normalisation: over the batch it treats channels one by one; over channels it changes with their number."""

from collections.abc import Sequence
from typing import Any

from ntksap.compaction.ids import Axes
from ntksap.compaction.rules.table import Operator, rule


@rule("batch_norm", "instance_norm")
def batch_norm(
    op: Operator, x: Axes, weight: Axes | None, bias: Axes | None, mean: Axes | None, variance: Axes | None, *rest: Any
) -> Axes:
    """Normalise each channel (dimension 1) by statistics of its own."""
    for stored in (weight, bias, mean, variance):
        if stored is not None:
            op.unite(x.ids[1], stored.ids[0])
    return x


@rule("layer_norm", "rms_norm")
def layer_norm(
    op: Operator, x: Axes, shape: Sequence[int], weight: Axes | None = None, bias: Axes | None = None, *rest: Any
) -> Axes:
    """Normalise over the last dimensions together."""
    for back in range(1, len(shape) + 1):
        for stored in (weight, bias):
            if stored is not None:
                op.unite(x.ids[-back], stored.ids[-back])
        if op.exact or back > 1:
            op.freeze(x.ids[-back], "normalised over, so that the result depends on the number of features")
    return x


@rule("group_norm")
def group_norm(
    op: Operator, x: Axes, groups: int, weight: Axes | None = None, bias: Axes | None = None, *rest: Any
) -> Axes:
    """Normalise over the channels of each group together; groups of one channel are channels by themselves."""
    channels = x.ids[1]
    for stored in (weight, bias):
        if stored is not None:
            op.unite(channels, stored.ids[0])
    if groups != len(channels) and not op.apart:
        op.unite_rows(channels.reshape(groups, -1))
        if op.exact:
            op.freeze(channels, "normalised over, so that the result depends on the number of features")
    return x
