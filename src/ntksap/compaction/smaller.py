"""Make a pruned module smaller."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from ntksap.compaction.plan import plan_compaction
from ntksap.net import Inputs


def compact(
    model: nn.Module, masks: Mapping[str, Tensor], example_inputs: Inputs, *, inexact: Collection[str] = ()
) -> nn.Module:
    """Return a plain smaller copy of ``model`` that computes what ``model`` computes under ``masks``.

    A channel goes if, with the pruned weights at zero, no output depends on it: it is always zero, or nothing that
    reads it has a weight for it, or it is a constant that fits into the biases of the layers that read it. Nothing is
    approximated, so masks of any kind will do, including those of single weights. At least one channel of every group
    stays.
    Kept weights count as such even if they are zero now (a branch that starts at zero is to be trained), unless they
    do not require a gradient.

    Args:
        model: any module that ``torch.export`` can read; it is not changed. Its class and the names of its parameters
            stay the same (`torch.nn.MultiheadAttention` without some heads becomes a subclass of itself).
        masks: {parameter: bool mask, True = kept}.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
        inexact: operators whose result depends on the number of channels (``"layer_norm"``) and which may change.

    Outputs are the same in evaluation mode, and in training mode too unless BatchNorm turns channels whose weights are
    pruned into constants: masks for whole channels hold its parameters at zero, so that there is no difference.

    Raises `MaskError` for masks of another model and `InputError` if the graph cannot be read.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    >>> masks = {"0.weight": torch.tensor([[True] * 3, [False] * 3, [True] * 3, [False] * 3])}
    >>> compact(model, masks, torch.ones(1, 3))
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=False)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    return plan_compaction(model, masks, example_inputs, inexact=inexact).apply(model, masks)
