"""The thin network: the dense one with fewer channels in every layer, as cheap as a pruned one."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import nn

from ntksap._base import InputError
from ntksap._prune import prune
from ntksap.analysis import cost
from ntksap.models import Model, model_named
from ntksap.net import prunable_names


@lru_cache
def thin_model(
    name: str, sparsity: float, budget: str, allocation: str, input_shape: tuple[int, int, int], num_classes: int
) -> Model:
    """Return the model at the width whose cost is nearest to (1 − sparsity) of the model's own, or to that of masks.

    Args:
        name: a model of the table.
        sparsity: the share by which it is cheaper.
        budget: what is counted: prunable ``"weights"``, or ``"multiply-adds"`` of one inference.
        allocation: the rule of the masks of this sparsity that it shall cost as much as; none if empty.
        input_shape, num_classes: those of the data.

    Raises `InputError` if even one channel costs more than twice what is asked for.
    """
    model = model_named(name)
    count = _weights if budget == "weights" else _multiply_adds

    def costs(width: int) -> float:
        with torch.random.fork_rng(devices=()):
            return count(model.at_width(width).make(input_shape, num_classes), input_shape)

    target = (1 - sparsity) * costs(model.width)
    if allocation:
        with torch.random.fork_rng(devices=()):
            target = _under_masks(model.make(input_shape, num_classes), sparsity, allocation, input_shape)
    low, high = 1, model.width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if costs(middle) <= target else (low, middle)
    width = min((low, high), key=lambda width: abs(costs(width) - target))
    if costs(width) > 2 * target:
        raise InputError(
            f"{name} with one channel in its first layer still has more than twice the {budget} that a sparsity of "
            f"{sparsity} leaves: lower the sparsity, or leave out the thin network"
        )
    return model.at_width(width)


def _weights(module: nn.Module, input_shape: Sequence[int]) -> float:
    return float(sum(module.get_parameter(name).numel() for name in prunable_names(module)))


def _multiply_adds(module: nn.Module, input_shape: Sequence[int]) -> float:
    return float(cost(module, input_shape=input_shape).dense)


def _under_masks(module: nn.Module, sparsity: float, allocation: str, input_shape: Sequence[int]) -> float:
    """Return the multiply-adds of an inference under masks, which depend on how many weights each layer keeps alone."""
    masks = prune(module, sparsity, "random", allocation=allocation, input_shape=input_shape)
    return float(cost(module, masks, input_shape=input_shape).sparse)
