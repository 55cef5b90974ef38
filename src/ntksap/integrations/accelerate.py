"""Masks in a loop with an Accelerator."""

from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from ntksap.integrations.keeper import Given, MaskKeeper
from ntksap.pruning import Masks

__all__ = ["register_pruning"]


def register_pruning(
    accelerator: Accelerator, model: nn.Module, masks: Given = None, *, part: str = "", **how: Any
) -> Masks:
    """Prune ``model`` or attach given masks, and have the accelerator keep them; return the masks.

    ``accelerator.save_state`` then checks that pruned weights are exactly zero and writes ``masks.safetensors`` to its
    folder; ``accelerator.load_state`` attaches the masks that it finds there before it loads the weights.

    Args:
        accelerator: the loop's Accelerator.
        model: what ``accelerator.prepare`` returned, so that all processes have the same weights.
        masks: masks, or the file that holds them. Without them the model is pruned here.
        part: the part of the model that is pruned, by its dotted name; by default the whole model.
        how: keywords of `ntksap.prune`.

    Raises `MaskError`, from ``save_state``, when a pruned weight is not zero, and from ``load_state`` when the
    checkpoint has masks other than those that were given, or none.
    """
    keeper = MaskKeeper(masks, part, how)

    def before_save(models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        keeper.check()
        if accelerator.is_main_process:
            keeper.save(Path(output_dir))

    def before_load(models: list[nn.Module], input_dir: str) -> None:
        keeper.resume_from(Path(input_dir), before_weights=True)

    accelerator.register_save_state_pre_hook(before_save)
    accelerator.register_load_state_pre_hook(before_load)
    keeper.begin(model)
    assert keeper.masks is not None
    return keeper.masks
