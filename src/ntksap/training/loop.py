"""Training: one visible loop that yields a record per epoch."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from ntksap._base import InputError, MaskError, NtksapError, explain_lost_ranks, global_seed
from ntksap.data import Dataset
from ntksap.training.evaluation import Totals, evaluate, shares
from ntksap.training.kernels import FollowMasks
from ntksap.training.recipe import lr_at
from ntksap.training.regrow import regrowth_of
from ntksap.training.state import TrainState


class DivergedError(NtksapError, ArithmeticError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True)
class Epoch:
    """What one epoch did."""

    epoch: int
    """Epochs that are finished, this one included."""
    train_loss: float
    """Mean cross-entropy over the training images, each as it was when its batch was trained on."""
    train_accuracy: float
    """Share of training images that were classified correctly at that time."""
    test_loss: float
    """Mean cross-entropy over all test images after the epoch."""
    top1: float
    """Share of test images whose class has the highest logit."""
    top5: float
    """Share of test images whose class is among the five highest logits; with fewer than five classes, top1 again."""
    lr: float
    """Learning rate of the last step."""
    images_per_second: float
    """Training images per second of training, without the test."""
    seconds: float
    """Seconds of training and test together."""
    pruned: float
    """Share of prunable weights that masks hold at exactly zero, checked; 0 without masks."""


def train(state: TrainState, data: Dataset) -> Iterator[Epoch]:
    """Train until the recipe's last epoch and yield a record after each, beginning where ``state`` is.

    Whoever consumes the records may save the state between them. Loading that and calling `train` again ends in the
    same bits as training without interruption. The same seed gives the same bits on the same machine with the same
    number of threads (on a GPU, if ``torch.use_deterministic_algorithms`` is on).

    Raises `DivergedError` instead of yielding the record of an epoch whose loss is not finite, and `MaskError` when a
    pruned weight is not zero. The state is then in the middle of an epoch; load the last one that was saved.
    """
    recipe, optimizer, ranks = state.recipe, state.optimizer, state.ranks
    if not len(data.train) or not len(data.test):
        raise InputError(f"{data.name} has {len(data.train)} training and {len(data.test)} test images: nothing to do")
    steps = math.ceil(len(data.train) / recipe.batch)
    regrowth = regrowth_of(state, steps)
    while state.epoch < recipe.epochs:
        start = time.perf_counter()
        totals = Totals(state)
        # The seed is for models that draw in their forward pass. The block must not enclose the yield.
        with global_seed(state.seed, "epoch", state.epoch), explain_lost_ranks(), FollowMasks(state.kernels) as kernels:
            state.model.train()
            batches = shares(state, data.train, seed=state.seed, epoch=state.epoch, augment=recipe.augment)
            for index, (images, labels, weight) in enumerate(batches):
                kernels.follow(state.masks, all_gradients=regrowth is not None and regrowth.listening)
                lr = lr_at(recipe, state.epoch * steps + index, steps)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                logits = state.logits(images)
                loss = cross_entropy(logits, labels)
                optimizer.zero_grad()
                (loss * weight).backward()
                optimizer.step()
                if regrowth is not None and regrowth.step():
                    state.masks = regrowth.masks
                totals.add(loss, logits, labels, weight)
                if index == 0:  # later steps are checked together, at the end of the epoch
                    _check(state, ranks.add(loss).item())
            ranks.copy_first(state.model.buffers())  # BatchNorm's, where each process has its own
            train_loss, train_accuracy, _ = totals.means()
            train_seconds = time.perf_counter() - start
            kernels.follow(state.masks)
            test_loss, top1, top5 = evaluate(state, data.test)
        _check(state, train_loss, test_loss)
        state.epoch += 1
        yield Epoch(
            epoch=state.epoch,
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            test_loss=test_loss,
            top1=top1,
            top5=top5,
            lr=lr,
            images_per_second=len(data.train) / train_seconds,
            seconds=time.perf_counter() - start,
            pruned=state.masks.sparsity if state.masks else 0.0,
        )


def _check(state: TrainState, *losses: float) -> None:
    if not all(math.isfinite(loss) for loss in losses):
        hint = " or compute in fp32" if state.recipe.precision == "bf16" else ""
        raise DivergedError(
            f"training diverged in epoch {state.epoch + 1}: the loss is {', '.join(map(str, losses))}. Lower the "
            f"learning rate (lr is {state.recipe.lr}){hint}"
        )
    if state.masks is not None and not state.masks.obeyed_by(state.model):
        raise MaskError(
            f"pruned weights are not zero in epoch {state.epoch + 1}: something other than the optimizer changed them"
        )
