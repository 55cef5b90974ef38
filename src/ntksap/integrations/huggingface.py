"""Masks in the Trainer of transformers."""

from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback

from ntksap.integrations.keeper import Given, MaskKeeper
from ntksap.pruning import Masks

__all__ = ["PruningCallback"]


class PruningCallback(TrainerCallback):  # type: ignore[misc]  # transformers may be missing when types are checked
    """Prunes when training begins, or attaches given masks; keeps them across checkpoints; checks them at every save.

    Each checkpoint holds ``masks.safetensors``, and training that resumes from one takes them from there. Everything
    that the Trainer does to gradients (accumulation, clipping, mixed precision) leaves pruned weights at zero.

    Args:
        masks: masks, or the file that holds them. Without them the model is pruned when training begins.
        part: the part of the model that is pruned, by its dotted name; by default the whole model.
        how: keywords of `ntksap.prune`: ``sparsity``, ``method``, ``inputs`` or ``input_shape``, ``data``, …

    Raises `MaskError` when a pruned weight is not zero at a save, or when a checkpoint has other masks.

    Limits: FSDP1 and DeepSpeed replace parameters, and masks do not follow. ``trainer.save_model`` alone calls no
    callback; ask ``callback.masks.obeyed_by(model)``.
    """

    def __init__(self, masks: Given = None, *, part: str = "", **how: Any) -> None:
        self._keeper = MaskKeeper(masks, part, how)

    @property
    def masks(self) -> Masks | None:
        """The masks; None until training begins, if they are yet to be made."""
        return self._keeper.masks

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        """Prune or attach. The weights of a checkpoint are in the model by now."""
        if state.global_step:
            self._keeper.resume_from(_folder(args, state))
        self._keeper.begin(model)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check, and put the masks beside the weights."""
        self._keeper.check()
        if state.is_world_process_zero:
            self._keeper.save(_folder(args, state))


def _folder(args: Any, state: Any) -> Path:
    """Return the folder of the Trainer's current checkpoint."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
