"""How many paths lead from the inputs to the outputs of a pruned network?"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import InputError
from ntksap.analysis.path_rules import Counts, counts
from ntksap.net import Net, map_tensors, own_identities
from ntksap.pruning import MakeInputs, Masks, Probe


def log10_paths(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
) -> float:
    """Return log₁₀ of the number of paths from the entries of one input to those of its output; −∞ for none.

    The module's own forward pass counts them: on an input of ones, with masks as weights, without biases, with every
    activation and norm as the identity, and with sums instead of means and maxima, an entry is the number of
    paths that end there. So a convolution has a path for each place that a kept weight looks at. Where signals are
    multiplied (attention, gates), pairs of paths count. Each layer's numbers are divided by their largest, whose
    logarithm is kept, so that no network is too deep.

    Raises `InputError` if the module calls something that paths cannot be followed through, such as an LSTM.

    >>> layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> masks = {"0.weight": torch.tensor([[True, True], [True, False]]), "2.weight": torch.tensor([[True, False]])}
    >>> round(10 ** log10_paths(layers, masks, input_shape=(2,)), 9)
    2.0
    """
    Masks(masks).check(model)
    net = Net(model, output=output, include=tuple(masks), dtype=torch.float64)
    probe = Probe.of(net, input_shape=input_shape, inputs=inputs)
    weights = {name: _counted(name, weight, masks.get(name)) for name, weight in net.weights.items()}
    ones = map_tensors(probe.ones(torch.float64), lambda t: counts(t) if t.is_floating_point() else t)
    try:
        with own_identities(net):
            found = net(weights, ones)
    except InputError:
        raise
    except Exception as error:  # whatever a foreign module does with tensors that are not ordinary ones
        raise InputError(f"paths cannot be counted in this module ({str(error).splitlines()[0]})") from error
    if not isinstance(found, Counts):
        raise InputError("paths cannot be counted in this module: its output does not come from its input")
    total = float(found.as_subclass(Tensor).sum())
    return (found.exponent + math.log(total)) / math.log(10) if total > 0 and found.path else -math.inf


def _counted(name: str, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Return the stand-in for a parameter: its mask, 0 for a bias, and 1 for anything else."""
    if mask is not None:
        return counts(mask.to(weight.device, torch.float64), path=False)
    if weight.dim() < 2:
        return torch.zeros_like(weight) if name.endswith("bias") else torch.ones_like(weight)
    return counts(torch.ones_like(weight), path=False)
