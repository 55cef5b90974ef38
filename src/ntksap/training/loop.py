"""Training: one visible loop that yields a record per epoch, and a state that can be saved between records."""

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from ntksap._base import InputError, MaskError, NtksapError, Ranks, explain_lost_ranks, global_seed
from ntksap.data import Dataset, Split
from ntksap.net import first_tensor, unwrap
from ntksap.net.kernels import Choices, bears_channels_last, provenance, ruled_kernels, safe_layers, sparse_kernels
from ntksap.pruning import Masks, Regrowth, moved
from ntksap.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from ntksap.training.recipe import Recipe, lr_at
from ntksap.training.sync_norm import synchronise_norms


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


class TrainState:
    """A model in training. Everything that `train` changes is here and survives `save` and `load` exactly.

    Args:
        model: the module, with its initial weights. It is trained itself, not a copy.
        recipe: how to train.
        masks: attached to the model (see `Masks.attach`), so that pruned weights are zero and stay so; kept ones are
            rescaled if the masks were made for it. Where the recipe regrows, ``state.masks`` are the present ones.
        seed: decides the order of images, augmentation, and what the model draws in its forward pass.
        device: where to train; the model is moved there. By default it stays where it is.
        group: a process group that shares each batch (DDP), such as ``torch.distributed.group.WORLD``; every process
            in it makes the same state and calls `train`. Only the first should save.
        sync_norm: with a group, BatchNorm takes its statistics over the whole batch, not over each process's share, so
            that training does not depend on the number of processes (except for the last bits of sums).
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        masks: Masks | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        group: ProcessGroup | None = None,
        sync_norm: bool = True,
    ) -> None:
        self.ranks = Ranks(group)
        self.ranks.agree("masks", masks.sha256 if masks is not None else "none")
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.model = unwrap(model).to(self.device)
        self._native = self.device.type == "cpu" and recipe.precision == "fp32" and not recipe.compile
        # Which way each layer goes, once it is known. Several processes must go the same way, so they follow a rule.
        self.choices = Choices() if self._native and group is None else None
        self._last = recipe.channels_last and (self.device.type != "cpu" or bears_channels_last(self.model))
        self._channels_last = self._last
        if self._last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if masks is not None:
            masks.attach(self.model)
        self.recipe = recipe
        self.masks = masks
        self._start = masks
        self.seed = seed
        self.epoch = 0  # finished epochs
        # After attaching: an optimizer that holds momentum from before would move pruned weights.
        self.optimizer = _optimizer(self.model, recipe)
        self._forward = torch.compile(model) if recipe.compile else model
        self._learner: Any = self._forward
        if group is not None:
            if sync_norm:
                synchronise_norms(self.model, group)
            with warnings.catch_warnings():  # torch 2.13 has another name for this argument, older versions do not
                warnings.simplefilter("ignore", FutureWarning)
                self._learner = DistributedDataParallel(
                    self._forward, process_group=group, broadcast_buffers=False, gradient_as_bucket_view=True
                )

    @property
    def regrows(self) -> bool:
        """Whether its masks change during training."""
        return self.masks is not None and self.recipe.regrow != "none"

    def regrowth(self, steps: int) -> Regrowth | None:
        """Return the regrowth from here on, in a training with ``steps`` per epoch; None if masks do not change."""
        recipe = self.recipe
        if self.masks is None or recipe.regrow == "none":
            return None
        made = Regrowth(
            self.model,
            self.masks,
            self.optimizer,
            steps=recipe.epochs * steps,
            method=recipe.regrow,
            interval=recipe.regrow_every,
            fraction=recipe.regrow_fraction,
            until=recipe.regrow_until,
            seed=self.seed,
            group=self.ranks.group,
        )
        made.load_state_dict({**made.state_dict(), "step": self.epoch * steps})
        return made

    @contextmanager
    def kernels(self, *, all_gradients: bool = False) -> Iterator[None]:
        """Inside the block, layers use the faster kernels of this package, and touch their kept weights only.

        ``all_gradients``: torch's own kernels, which compute the gradients of pruned weights too.
        """
        if all_gradients or not self._native:
            with safe_layers(self.model):
                yield
            return
        masks: Mapping[str, Tensor] = self.masks or {}
        ruled = self.choices is None
        with (
            ruled_kernels(self.model, masks)
            if ruled
            else sparse_kernels(self.model, masks, choices=self.choices) as most
        ):
            # Kernels for kept weights want the channels first; the recipe's layout is for dense ones, now few.
            self._channels_last = self._last and not most
            try:
                yield
            finally:
                self._channels_last = self._last

    def logits(self, images: Tensor) -> Tensor:
        """(N, C, H, W) → logits (N, classes) in float32, computed in the recipe's precision and memory format."""
        if self._channels_last:
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            output = (self._learner if self.model.training else self._forward)(images)
        return first_tensor(output).float()

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, all of it or nothing; call it between records of `train`."""
        masks, ways = self.masks if self.regrows else None, self.choices.ways if self.choices is not None else None
        identity, kernels = self._identity(), self._provenance()
        write_checkpoint(path, self.model, self.optimizer, self.epoch, identity, kernels, masks, ways)

    def load(self, path: str | Path, *, other_kernels: bool = False) -> None:
        """Become the state that was saved; `CheckpointError`, and no change, if it is not from this training.

        A training that was saved with other kernels (see `ntksap.net.kernels`) would not end in the same bits; it
        resumes only with ``other_kernels``. Layers go the ways that were chosen then; where none were, as in earlier
        versions, they follow a rule, as they did.
        """
        kernels = None if other_kernels else self._provenance()
        wanted = self.masks if self.regrows else None
        epoch, masks, ways = read_checkpoint(path, self.model, self.optimizer, self._identity(), kernels, wanted)
        if not 0 <= epoch <= self.recipe.epochs:
            raise CheckpointError(f"{path} is after epoch {epoch}, but this training has only {self.recipe.epochs}")
        self.epoch = epoch
        if self.choices is not None:
            self.choices = Choices(ways) if ways is not None else None
        if self._start is not None and masks:
            self.masks = moved(self._start, masks)
            self.masks.attach(self.model)

    def _provenance(self) -> str | None:
        """Whose kernels train, where that may differ from one machine to the next."""
        return provenance() if self._native else None

    def _identity(self) -> dict[str, object]:
        rescale = self._start.info.get("rescale") if self._start else None
        return {
            "seed": self.seed,
            "masks": self._start.sha256 if self._start else None,
            **({"rescale": rescale} if rescale else {}),
            **self.recipe.stated(),
        }


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
    regrowth = state.regrowth(steps)
    while state.epoch < recipe.epochs:
        start = time.perf_counter()
        totals = _Totals(state)
        # The seed is for models that draw in their forward pass. The block must not enclose the yield.
        with global_seed(state.seed, "epoch", state.epoch), explain_lost_ranks(), _Kernels(state) as kernels:
            state.model.train()
            batches = _shares(state, data.train, seed=state.seed, epoch=state.epoch, augment=recipe.augment)
            for index, (images, labels, weight) in enumerate(batches):
                kernels.follow(all_gradients=regrowth is not None and regrowth.listening)
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
            kernels.follow()
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


class _Kernels(ExitStack):
    """The kernels of a training, which are entered again when its masks have changed."""

    def __init__(self, state: TrainState) -> None:
        super().__init__()
        self._state = state
        self._used: tuple[Masks | None, bool] | None = None

    def follow(self, *, all_gradients: bool = False) -> None:
        """Use those that fit the present masks and the coming step."""
        wanted = self._state.masks, all_gradients
        if self._used is None or self._used[0] is not wanted[0] or self._used[1] != all_gradients:
            self.close()
            self.enter_context(self._state.kernels(all_gradients=all_gradients))
            self._used = wanted


@torch.no_grad()
def evaluate(state: TrainState, split: Split) -> tuple[float, float, float]:
    """Return mean cross-entropy, top-1 and top-5 accuracy (see `Epoch`) over all images of ``split``."""
    totals = _Totals(state)
    modes = {module: module.training for module in state.model.modules()}
    state.model.eval()
    try:
        for images, labels, weight in _shares(state, split):
            logits = state.logits(images)
            totals.add(cross_entropy(logits, labels), logits, labels, weight)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return totals.means()


def _shares(state: TrainState, split: Split, **how: Any) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield this process's share of each batch, and a weight: the mean over processes of weight × (the mean loss over a
    share) is the mean loss over the batch. It is 0 for the image that stands in for an empty share, and 1 for one
    process alone.
    """
    ranks, size = state.ranks, state.recipe.batch
    batches = split.batches(size, device=state.device, part=(ranks.rank, ranks.size), **how)
    for index, (images, labels) in enumerate(batches):
        count = min(size, len(split) - index * size)
        yield images, labels, len(ranks.share(count)) * ranks.size / count


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


class _Totals:
    """Sums over an epoch and all processes. They stay on the device, so that no step waits for the GPU."""

    def __init__(self, state: TrainState) -> None:
        self.ranks = state.ranks
        self.sums = torch.zeros(4, device=state.device)  # loss, top-1, top-5, images; counts are exact up to 2²⁴

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, weight: float) -> None:
        """Add a share of a batch: its mean loss, logits (N, classes) and labels (N); nothing if it has no weight."""
        if weight == 0:
            return
        # topk breaks ties in some order; counting the logits above the label's would call constant outputs all right
        best = logits.topk(5 if logits.shape[1] >= 5 else 1).indices
        hits = best == labels[:, None]
        self.sums += torch.stack([loss * len(labels), hits[:, 0].sum(), hits.sum(), torch.full_like(loss, len(labels))])

    def means(self) -> tuple[float, float, float]:
        """Return mean loss, top-1 and top-5 accuracy."""
        *sums, count = self.ranks.add(self.sums).cpu().double().tolist()
        loss, top1, top5 = (total / count for total in sums)
        return loss, top1, top5


def _optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if recipe.optimizer == "adamw":
        return AdamW(parameters, recipe.lr, betas=(recipe.momentum, 0.999), weight_decay=recipe.weight_decay)
    return SGD(
        parameters,
        recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.optimizer == "nesterov",
    )
