"""Masks in Lightning's Trainer and in Fabric."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from torch import nn

from ntksap.integrations.keeper import Given, MaskKeeper
from ntksap.pruning import Masks

__all__ = ["PruningCallback"]


def _callback() -> Any:
    """Return the base of callbacks: the Trainer comes in two packages; Fabric on its own has none and needs none."""
    for package in ("lightning", "pytorch_lightning", "lightning_fabric"):
        if importlib.util.find_spec(package) is not None:
            module = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
            return getattr(module, "Callback", object)
    raise ModuleNotFoundError(
        "ntksap.integrations.lightning needs Lightning: pip install 'ntksap[lightning]', or 'ntksap[fabric]'",
        name="lightning",
    )


class PruningCallback(_callback()):  # type: ignore[misc]
    """Prunes when training begins, or attaches given masks; keeps them across checkpoints; checks them at every save.

    Trainer: ``Trainer(callbacks=[PruningCallback(sparsity=0.9, part="net", input_shape=(1, 8, 8))])``. Masks are in
    every checkpoint and come back from it with ``fit(..., ckpt_path=…)``.

    Fabric: ``Fabric(callbacks=[pruning])`` prunes in ``fabric.setup``. Put it into the state,
    ``fabric.save(path, {"model": model, "optimizer": optimizer, "pruning": pruning})``, and each save checks the
    masks and holds them; ``fabric.load`` refuses a checkpoint with other masks.

    Args:
        masks: masks, or the file that holds them. Without them the model is pruned when training begins.
        part: the part of the model that is pruned, by its dotted name, such as the attribute of a LightningModule that
            holds the network; by default the whole module, with its own ``forward``.
        how: keywords of `ntksap.prune`: ``sparsity``, ``method``, ``input_shape``, ``data``, …

    Raises `MaskError` when a pruned weight is not zero at a save or after an epoch, or when a checkpoint has other
    masks.
    """

    def __init__(self, masks: Given = None, *, part: str = "", **how: Any) -> None:
        super().__init__()
        self._keeper = MaskKeeper(masks, part, how)

    @property
    def masks(self) -> Masks | None:
        """The masks; None until training begins, if they are yet to be made."""
        return self._keeper.masks

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Trainer: prune or attach. The weights and the callbacks of a checkpoint have been loaded by now."""
        self._keeper.begin(pl_module)

    def on_after_setup(self, fabric: Any, module: nn.Module) -> None:
        """Fabric: prune or attach."""
        self._keeper.begin(module)

    def on_train_epoch_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Check here, since checkpoints of weights alone ask no callback; they are written after this."""
        self._keeper.check()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds; `MaskError` if a pruned weight is not zero."""
        return self._keeper.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the masks of a checkpoint."""
        self._keeper.load_state_dict(state_dict)
