"""A model in training, which can be saved between epochs and becomes exactly what was saved."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from ntksap._base import Ranks, check_bfloat16
from ntksap.net import first_tensor, unwrap
from ntksap.net.kernels import Choices
from ntksap.pruning import Masks, moved
from ntksap.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from ntksap.training.kernels import TrainingKernels
from ntksap.training.recipe import Recipe
from ntksap.training.sync_norm import synchronise_norms


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
        if recipe.precision == "bf16":
            check_bfloat16(self.device)
        self.model = unwrap(model).to(self.device)
        self.kernels = TrainingKernels(self.model, recipe, self.device, alone=group is None)
        if self.kernels.channels_last:
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

    def logits(self, images: Tensor) -> Tensor:
        """(N, C, H, W) → logits (N, classes) in float32, computed in the recipe's precision and memory format."""
        if self.kernels.channels_last:
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            output = (self._learner if self.model.training else self._forward)(images)
        return first_tensor(output).float()

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, all of it or nothing; call it between records of `train`."""
        masks, choices = self.masks if self.regrows else None, self.kernels.choices
        ways = choices.ways if choices is not None else None
        identity, kernels = self._identity(), self.kernels.provenance()
        write_checkpoint(path, self.model, self.optimizer, self.epoch, identity, kernels, masks, ways)

    def load(self, path: str | Path, *, other_kernels: bool = False) -> None:
        """Become the state that was saved; `CheckpointError`, and no change, if it is not from this training.

        A training that was saved with other kernels (see `ntksap.net.kernels`) would not end in the same bits; it
        resumes only with ``other_kernels``. Layers go the ways that were chosen then; where none were, as in earlier
        versions, they follow a rule, as they did.
        """
        kernels = None if other_kernels else self.kernels.provenance()
        wanted = self.masks if self.regrows else None
        epoch, masks, ways = read_checkpoint(path, self.model, self.optimizer, self._identity(), kernels, wanted)
        if not 0 <= epoch <= self.recipe.epochs:
            raise CheckpointError(f"{path} is after epoch {epoch}, but this training has only {self.recipe.epochs}")
        self.epoch = epoch
        if self.kernels.choices is not None:
            self.kernels.choices = Choices(ways) if ways is not None else None
        if self._start is not None and masks:
            self.masks = moved(self._start, masks, self.recipe.regrow)
            self.masks.attach(self.model)

    def _identity(self) -> dict[str, object]:
        rescale = self._start.info.get("rescale") if self._start else None
        return {
            "seed": self.seed,
            "masks": self._start.sha256 if self._start else None,
            **({"rescale": rescale} if rescale else {}),
            **self.recipe.stated(),
        }


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
