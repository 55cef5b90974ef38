"""Degree decay (WideTopo): scores are lowered where units have many kept weights already, so that fewer units die."""

from torch import Tensor

from ntksap.net import WeightView


def degree_products(mask: Tensor, view: WeightView) -> Tensor:
    """Return, for each weight, (kept weights that leave its input) · (kept weights that enter its output).

    Both count within its own layer, over all positions of a kernel, and are at least 1; float64, in the weight's shape.

    >>> import torch
    >>> degree_products(torch.tensor([[True, True], [True, False]]), WeightView((2, 2)))
    tensor([[4., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    kept = view.matrices(mask).double()
    entering, leaving = view.unit_sums(kept)
    return view.tensor((entering.clamp_min(1) * leaving.clamp_min(1)).expand(kept.shape))


def decayed(score: Tensor, mask: Tensor, view: WeightView, exponent: float) -> Tensor:
    """Return score ⊙ (degree product)^(−exponent), given the present mask."""
    if not score.numel():
        return score
    return score * degree_products(mask.cpu(), view).pow(-exponent).to(score)
