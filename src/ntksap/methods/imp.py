"""IMP, iterative magnitude pruning with rewinding (Frankle and Carbin, ICLR 2019; Frankle et al., ICML 2020)."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from ntksap._base import InputError, Range, counted
from ntksap.net import Net
from ntksap.pruning import Masks, Probe, Selector, first_round


def check_rewinds(*, rewind_epoch: int, level_epochs: int) -> None:
    """Raise if the epoch to rewind to comes after the last of a level."""
    if 0 < level_epochs < rewind_epoch:
        raise InputError(
            f"rewind_epoch is {rewind_epoch}, but a level has only {counted(level_epochs, 'epoch')} (level_epochs): "
            "choose one that it has"
        )


def imp(
    net: Net,
    probe: Probe,
    *,
    selector: Selector,
    invert: bool,
    after: Masks | None,
    rewind_epoch: Annotated[
        int, "rewind to the weights after this epoch of dense training; 0: the initial ones", Range(0)
    ] = 0,
    level_epochs: Annotated[int, "epochs of training per level; 0: as many as the training has", Range(0)] = 0,
) -> Iterator[Masks]:
    """Train, remove the smallest weights, rewind the others, and repeat: the expensive upper bound.

    Level t = 1…T: train from w⁰⊙m_{t−1}; m_t keeps the round(d_t·N) largest of the trained |w| that m_{t−1} keeps. w⁰
    is θ, or the weights after ``rewind_epoch`` epochs of the dense training of level 1, and comes with the masks. By
    default a level removes a fifth of what is left.
    """
    rounds = selector.rounds
    if after and (before := after.info.get("rewind_epoch")) != rewind_epoch:
        raise InputError(f"cannot resume: rewind_epoch was {before} before, it is {rewind_epoch} now")
    masks = after or Masks.ones({name: net.weights[name] for name in net.prunable})
    start = after.weights if after else net.weights
    sign = -1 if invert else 1
    for level in range(first_round(rounds, after), rounds + 1):
        trained, epoch = None, 0
        for epoch, trained in enumerate(islice(probe.trained(start, masks), level_epochs or None), 1):
            if level == 1 and epoch == rewind_epoch:
                anchor = trained
        if trained is None or (level == 1 and epoch < rewind_epoch):
            raise InputError(f"level {level} was trained for {epoch} epochs, but rewind_epoch is {rewind_epoch}")
        if level == 1 and rewind_epoch:
            start = anchor
        masks = selector.masks({name: sign * trained[name].abs() for name in net.prunable}, level, within=masks)
        masks = Masks(masks, {"round": level, "rounds": rounds, "rewind_epoch": rewind_epoch}, weights=start)
        yield masks
