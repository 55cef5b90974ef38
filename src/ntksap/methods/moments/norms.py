"""Normalisation: division by statistics that are held constant, as the paper holds those of BatchNorm."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntksap.methods.moments.linear import add, mul
from ntksap.methods.moments.table import moments_of, rule
from ntksap.methods.moments.uniform import thinned, widened
from ntksap.methods.moments.value import Moments


@rule("batch_norm")
def batch_norm(
    x: Moments,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """(x − E x)/√V per channel, V = E over positions of the variance over inputs; what inputs share is the mean.

    Tangents are divided by V but not centred, since the mean is a constant. Approximate: V stands for the variance of a
    particular draw, whose relative spread falls with the fan-in.
    """
    over, full, x = [0, *range(2, len(x.shape))], x.shape, thinned(x)
    scale = 1 / (x.variance.detach().mean(over, keepdim=True) + eps)
    zero = torch.zeros_like(scale)
    shape = [1, -1] + [1] * (len(full) - 2)
    if weight is not None:  # it has the shape of the scale: one product for both
        scale = scale * thinned(moments_of(weight).each(lambda field: field.view(shape))).square
    normal = Moments(x.variance * scale, zero, x.tangent * scale, x.tangent_cross * scale, zero)
    return _affine(widened(normal, full), None, bias, shape)


@rule("instance_norm")
def instance_norm(
    x: Moments,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """Like `batch_norm`: far positions of one noise image are as independent as two inputs."""
    return batch_norm(x, weight=weight, bias=bias, eps=eps)


@rule("torch.batch_norm", "torch.instance_norm")
def weight_first(x: Moments, weight: Any, bias: Any, running_mean: Any, running_var: Any, *args: Any) -> Moments:
    """What F.batch_norm and F.instance_norm call."""
    return batch_norm(x, weight=weight, bias=bias, eps=args[2])


@rule("layer_norm")
def layer_norm(
    x: Moments, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Moments:  # fmt: skip
    """(x − mean)/√V over the last dimensions of one input; approximate, good for many entries."""
    return _within(x, list(range(-len(normalized_shape), 0)), weight, bias, eps, centre=True)


@rule("rms_norm")
def rms_norm(x: Moments, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Moments:
    """x/√(mean of x²) over the last dimensions of one input; approximate, good for many entries."""
    return _within(x, list(range(-len(normalized_shape), 0)), weight, None, eps or 1e-7, centre=False)


@rule("group_norm")
def group_norm(
    x: Moments, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Moments:
    """LayerNorm over each group of channels with all their positions."""
    shape = x.square.shape
    grouped = x.each(lambda field: field.reshape(shape[0], num_groups, -1))
    normal = _within(grouped, [-1], None, None, eps, centre=True).each(lambda field: field.reshape(shape))
    return _affine(normal, weight, bias, [1, -1] + [1] * (len(shape) - 2))


@rule("normalize")
def normalize(x: Moments, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Moments:
    """x/‖x‖."""
    if p != 2:
        raise NotImplementedError(f"norms of order {p} have no moments")
    return _scaled(x, x.square.detach().sum(dim, keepdim=True) + eps**2)


@rule("_weight_norm")
def weight_norm(v: Any, g: Any, dim: int = 0) -> Moments:
    """g·v/‖v‖ with ‖v‖² held at its mean."""
    v = moments_of(v)
    over = [d for d in range(v.like.dim()) if d != dim % v.like.dim()] if dim >= 0 else list(range(v.like.dim()))
    return mul(_scaled(v, v.square.detach().sum(over, keepdim=True)), g)


def _within(x: Moments, over: list[int], weight: Any, bias: Any, eps: float, *, centre: bool) -> Moments:
    full = x.shape
    if centre:
        x = add(x, -x.mean.mean(over, keepdim=True))
    x = thinned(x)
    normal = _scaled(x, x.square.detach().mean(over, keepdim=True) + eps)
    return _affine(widened(normal, full), weight, bias, None)


def _scaled(x: Moments, size: Tensor) -> Moments:
    """x divided by the root of a constant."""
    return Moments(x.square / size, x.cross / size, x.tangent / size, x.tangent_cross / size, x.mean / size.sqrt())


def _affine(x: Moments, weight: Any, bias: Any, shape: list[int] | None) -> Moments:
    for operation, parameter in ((mul, weight), (add, bias)):
        if parameter is not None and (operation is mul or moments_of(parameter).square.any()):
            x = operation(x, moments_of(parameter).each(lambda field: field.view(shape) if shape else field))
    return x
