"""What pruning and training cost together, in multiply-adds, counted in two ways.

`paper_budget` is the paper's: a backward pass costs two forward passes, pruning evaluates the dense net, each round of
a data-driven method and of NTK-SAP sees 2,000 samples whatever the data set, and training costs what it would if zeros
were skipped.

`measured_budget` is what this program actually evaluates: torch counts the multiply-adds of every convolution and
matrix product while one round of scoring and one step of training run. Masked weights are zeros in dense tensors, so
training costs what the dense net costs.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ntksap._base import InputError
from ntksap._prune import prune
from ntksap.methods import method_named
from ntksap.net import Net
from ntksap.pruning import Data, Probe

_SAMPLES = 2000
# Forward passes of one sample through the dense net, a backward pass counted as two.
PAPER_PASSES = {
    "random": 0,
    "magnitude": 0,
    "snip": 3 * _SAMPLES,
    "grasp": 6 * _SAMPLES,
    "synflow": 3 * 100,  # one input of ones in each of 100 rounds
    "iterative-snip": 3 * _SAMPLES * 100,
    "ntk-sap": 6 * _SAMPLES * 100,  # 100 rounds, or 20 rounds of 5 draws
    "ntk-sap-s": 6 * _SAMPLES * 20,
}


@dataclass(frozen=True)
class Budget:
    """Multiply-adds of one inference, of pruning, and of training."""

    inference: int
    pruning: int
    training: int

    @property
    def total(self) -> int:
        """Pruning and training."""
        return self.pruning + self.training


def paper_budget(method: str, dense: int, sparse: int, *, epochs: int, images: int) -> Budget:
    """Return the budget in the paper's counting.

    Args:
        method: the name of a method.
        dense, sparse: multiply-adds of one inference without and with masks, see `ntksap.cost`.
        epochs, images: training takes this many passes over this many images.

    >>> paper_budget("snip", 41_288_330, 31_900_000, epochs=160, images=50_000)
    Budget(inference=31900000, pruning=247729980000, training=765600000000000)
    """
    if method not in PAPER_PASSES:
        raise InputError(f"the paper does not count {method!r}; it counts {', '.join(PAPER_PASSES)}")
    return Budget(sparse, PAPER_PASSES[method] * dense, 3 * sparse * epochs * images)


def measured_budget(
    model: nn.Module, method: str, *, epochs: int, images: int, rounds: int | None = None, **settings: Any
) -> Budget:
    """Return the budget of what is actually evaluated; runs one round of ``method`` and one step on two inputs.

    ``settings`` are those of `ntksap.prune` (input_shape, data, options …). Convolutions and matrix products are
    counted, but not normalisation, activations or the optimizer's arithmetic. A method that reads the training set is
    run on one batch and on two, and the difference is what each further batch of the images costs.
    """
    data, chosen = settings.pop("data", None), method_named(method)
    if chosen.splits:  # whole batches, and no passes that find out whether they fit into memory
        settings = {"micro_batch": sys.maxsize, **settings}

    def scoring(data: Data | None) -> int:
        with FlopCounterMode(display=False) as counter:
            prune(model, 0.5, method, rounds=1, data=data, **settings)
        return int(counter.get_total_flops()) // 2 * (rounds or chosen.rounds)  # torch counts a multiply-add as two

    if chosen.streams and data is not None:
        batch = next(iter(data(0) if callable(data) else data))
        size = len(torch.utils._pytree.tree_leaves(batch[0])[0])
        first = scoring([batch])
        pruning = first + round((images / size - 1) * (scoring([batch, batch]) - first))
    else:
        pruning = scoring(data)
    net = Net(model, output=settings.get("output"), include=settings.get("include"), exclude=settings.get("exclude"))
    inputs = Probe.of(net, input_shape=settings.get("input_shape"), inputs=settings.get("inputs")).noise(0, 2)
    leaves = {name: weight.clone().requires_grad_() for name, weight in net.weights.items()}
    with FlopCounterMode(display=False) as forward:
        output = net(leaves, inputs, norm="batch")
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)
    one, step = (
        counter / 4 for counter in (forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops())
    )  # two inputs, and torch counts a multiply-add as two
    return Budget(round(one), pruning, round(step * epochs * images))
