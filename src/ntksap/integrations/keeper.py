"""`MaskKeeper`: masks throughout training that other code carries out, from its start through every stop and save."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from ntksap._base import InputError, MaskError
from ntksap._prune import prune
from ntksap.net import unwrap
from ntksap.pruning import Masks

MASK_FILE = "masks.safetensors"
"""The name of the mask file in the folder of a checkpoint."""

Given: TypeAlias = Masks | str | Path | None
"""Masks, the file that holds them, or None to prune when training begins."""


class MaskKeeper:
    """Makes masks or takes given ones when training begins, attaches them, and recognises them when it resumes.

    Args:
        masks: masks, or the file that holds them; None prunes when training begins.
        part: the part of the model that the masks are for, by its dotted name; by default the whole model.
        how: keywords of `ntksap.prune`, where no masks are given: at least ``sparsity``.
    """

    def __init__(self, masks: Given, part: str, how: Mapping[str, Any]) -> None:
        if masks is None and "sparsity" not in how:
            raise InputError("give masks=, or what ntksap.prune needs to make them: sparsity=0.9, input_shape=…")
        if masks is not None and how:
            raise InputError(f"masks are given, so there is nothing to prune: omit {', '.join(how)}")
        self.masks = masks if isinstance(masks, Masks | None) else Masks.load(masks)
        self._given = masks is not None
        self._name, self._how = part, dict(how)
        self._part: nn.Module | None = None
        self._resumed = False

    def begin(self, model: nn.Module) -> None:
        """Prune ``model`` if there are no masks yet, and attach them; in a process group all share the work."""
        part = unwrap(model).get_submodule(self._name)
        if self.masks is None:
            ready = torch.distributed.is_available() and torch.distributed.is_initialized()
            group = {"group": torch.distributed.group.WORLD} if ready else {}
            self.masks = prune(part, **{**group, **self._how})
        if self.masks.weights and not self._resumed and self._part is None:  # else they have already been trained
            self.masks.load_weights(part)
        self.masks.attach(part)
        self._part = part

    def resume(self, masks: Masks, *, before_weights: bool = False) -> None:
        """Take the masks of a checkpoint.

        ``before_weights``: its weights are not loaded yet. If they are, no other masks may have been attached before,
        since those would have set some of them to zero.
        """
        if self.masks is not None and masks != self.masks and (self._given or not before_weights):
            raise MaskError(
                "the checkpoint was trained with masks other than those here: give masks= the ones that it began with"
            )
        self.masks, self._resumed = masks, True
        if self._part is not None:
            masks.attach(self._part)

    def resume_from(self, folder: Path, *, before_weights: bool = False) -> None:
        """Take the masks that `save` wrote to the folder of a checkpoint; where there are none, keep the given ones."""
        if (folder / MASK_FILE).exists():
            self.resume(Masks.load(folder / MASK_FILE), before_weights=before_weights)
        elif self._given:
            self._resumed = True
        else:
            raise MaskError(f"{folder} holds no {MASK_FILE}: give masks= those that the training began with")

    def check(self) -> None:
        """Raise `MaskError` unless every pruned weight is exactly zero."""
        if self.masks is None or self._part is None:
            return
        if not self.masks.obeyed_by(self._part):
            raise MaskError("pruned weights are no longer zero: something other than the optimizer changed them")

    def save(self, folder: Path) -> None:
        """Write the masks to the folder of a checkpoint; the weights that they began with have been trained since."""
        if self.masks is not None:
            Masks(self.masks, self.masks.info).save(folder / MASK_FILE)

    def state_dict(self) -> dict[str, Any]:
        """Return the masks, readable for ``torch.load`` with ``weights_only``; `MaskError` if the model breaks them."""
        self.check()
        return {"masks": self.masks.to("cpu"), "info": json.dumps(self.masks.info)} if self.masks is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the masks of `state_dict`."""
        if state:
            self.resume(Masks(state["masks"], json.loads(state["info"])))
