"""Degree decay (WideTopo): scores are lowered where units have many kept weights already, so that fewer units die."""

from torch import Tensor

from ntksap.net import WeightView


def degree_products(mask: Tensor, view: WeightView) -> Tensor:
    """Return, for each weight, (kept weights that leave its input) · (kept weights that enter its output).

    Of its own layer alone, all positions of a kernel counted, at least 1 each; float64, in the shape of the weight.

    >>> import torch
    >>> degree_products(torch.tensor([[True, True], [True, False]]), WeightView((2, 2)))
    tensor([[4., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    kept = view.matrices(mask).double()
    entering, leaving = view.unit_sums(kept)
    return view.tensor((entering.clamp_min(1) * leaving.clamp_min(1)).expand(kept.shape))


def decayed(score: Tensor, mask: Tensor, view: WeightView, exponent: float) -> Tensor:
    """Return score ⊙ (degree product)^(−exponent), given the mask of what is there now."""
    if not score.numel():
        return score
    return score * degree_products(mask.cpu(), view).pow(-exponent).to(score)
