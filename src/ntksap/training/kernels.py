"""Which kernels the layers of a training use, in which memory layout, as its masks change."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ntksap.net.kernels import Choices, bears_channels_last, provenance, ruled_kernels, safe_layers, sparse_kernels
from ntksap.training.recipe import Recipe


class TrainingKernels:
    """The kernels of a training: those of this package where they can be used, else torch's.

    Args:
        model: the module, on its device.
        recipe: in which precision and memory layout it is trained, and whether it is compiled.
        device: where.
        alone: no other process trains with this one. Several must go the same way, so they go by a rule.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, device: torch.device, *, alone: bool) -> None:
        self._model = model
        self.native = device.type == "cpu" and recipe.precision == "fp32" and not recipe.compile
        # Which way each layer goes, once it is known.
        self.choices = Choices() if self.native and alone else None
        self._last = recipe.channels_last and (device.type != "cpu" or bears_channels_last(model))
        self.channels_last = self._last
        """Whether images should have their channels last now."""

    def provenance(self) -> str | None:
        """Whose kernels train, where that may differ from one machine to the next."""
        return provenance() if self.native else None

    @contextmanager
    def use(self, masks: Mapping[str, Tensor], *, all_gradients: bool = False) -> Iterator[None]:
        """Inside the block, layers use the faster kernels of this package, and touch their kept weights only.

        ``all_gradients``: torch's own kernels, which compute the gradients of pruned weights too.
        """
        if all_gradients or not self.native:
            with safe_layers(self._model):
                yield
            return
        ruled = self.choices is None
        with (
            ruled_kernels(self._model, masks)
            if ruled
            else sparse_kernels(self._model, masks, choices=self.choices) as most
        ):
            # Kernels for kept weights want the channels first; the recipe's layout is for dense ones, now few.
            self.channels_last = self._last and not most
            try:
                yield
            finally:
                self.channels_last = self._last


class FollowMasks(ExitStack):
    """The kernels of a training, which are entered again when its masks have changed."""

    def __init__(self, kernels: TrainingKernels) -> None:
        super().__init__()
        self._kernels = kernels
        self._used: tuple[Mapping[str, Tensor] | None, bool] | None = None

    def follow(self, masks: Mapping[str, Tensor] | None, *, all_gradients: bool = False) -> None:
        """Use those that fit the present masks and the coming step."""
        if self._used is None or self._used[0] is not masks or self._used[1] != all_gradients:
            self.close()
            self.enter_context(self._kernels.use(masks or {}, all_gradients=all_gradients))
            self._used = masks, all_gradients
