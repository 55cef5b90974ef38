"""`Masks`: which weights of a module are kept, and how that meets the module."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import MaskError, sha256_of
from ntksap.net import WeightView, unwrap, weight_views
from ntksap.pruning.attach import Attachment, local_mask, local_part, tensors_of
from ntksap.pruning.mask_file import read_mask_file, write_mask_file
from ntksap.pruning.patterns import pattern_named
from ntksap.pruning.rescale import rescale_named, scales_of
from ntksap.pruning.table import layer_table


class Masks(Mapping[str, Tensor]):
    """A mapping from a parameter's own dotted name to its bool mask, True = kept.

    Masks that remove whole channels also hold what goes with them: biases, parameters of norms, running means
    (``info["followers"]``). Those are not prunable weights and do not enter any of the counts.

    >>> masks = Masks({"fc.weight": torch.tensor([[True, False], [True, True]])})
    >>> masks.kept, masks.total, masks.density
    (3, 4, 0.75)
    """

    def __init__(
        self,
        masks: Mapping[str, Tensor],
        info: Mapping[str, Any] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take masks and what came with them; all of it is saved together.

        Args:
            masks: {name: bool tensor}, True = kept.
            info: what is worth knowing about them; must be valid JSON.
            weights: where training is to start, if the method chose some.
            state: what else the method needs to resume after these masks.
        """
        for name, mask in masks.items():
            if mask.dtype != torch.bool:
                raise MaskError(f"mask {name!r} is {mask.dtype}, not torch.bool (True = kept)")
        self._masks = {name: mask.detach().cpu() for name, mask in masks.items()}
        self.info = dict(info or {})
        self.weights = {name: weight.detach().cpu() for name, weight in (weights or {}).items()}
        self.state = {name: tensor.detach().cpu() for name, tensor in (state or {}).items()}

    @classmethod
    def ones(cls, weights: Mapping[str, Tensor]) -> "Masks":
        """Return masks that keep every one of ``weights``."""
        return cls({name: torch.ones(w.shape, dtype=torch.bool, device="cpu") for name, w in weights.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def kept(self) -> int:
        """How many weights are kept."""
        return sum(int(mask.sum()) for mask in self.prunable.values())

    @property
    def total(self) -> int:
        """How many weights could have been pruned."""
        return sum(mask.numel() for mask in self.prunable.values())

    @property
    def prunable(self) -> dict[str, Tensor]:
        """The masks of prunable weights, without those that follow them."""
        followers = set(self.info.get("followers", ()))
        return {name: mask for name, mask in self._masks.items() if name not in followers}

    @property
    def density(self) -> float:
        """Kept ÷ total; 1 where there is nothing to prune."""
        return self.kept / self.total if self.total else 1.0

    @property
    def sparsity(self) -> float:
        """1 − density."""
        return 1 - self.density

    @property
    def collapsed(self) -> list[str]:
        """The names of layers with nothing left, through which no signal passes; ``"up[3]"`` is expert 3 of "up"."""
        stacks = self.info.get("stacks", ())
        layers = (
            (f"{name}[{index}]", one) if name in stacks else (name, one)
            for name, mask in self.prunable.items()
            for index, one in enumerate(mask if name in stacks else [mask])
        )
        return [name for name, mask in layers if not mask.any()]

    @property
    def sha256(self) -> str:
        """A hash of names, shapes and bits: equal exactly when the masks are equal."""
        return sha256_of(self._masks)

    def layers(self) -> list[dict[str, Any]]:
        """Return name, shape, kept and total of each layer, as plain values."""
        return [
            {"name": name, "shape": list(mask.shape), "kept": int(mask.sum()), "total": mask.numel()}
            for name, mask in self.prunable.items()
        ]

    def to(self, device: torch.device | str) -> dict[str, Tensor]:
        """Return the plain dictionary {name: mask} on a device."""
        return {name: mask.to(device) for name, mask in self._masks.items()}

    def attach(self, module: nn.Module, *, rescale: bool | str | None = None) -> Attachment:
        """Zero the pruned weights of ``module`` and keep them zero, whatever optimizer trains it.

        Gradients of pruned weights are zeroed before the optimizer sees them, and the weights again after each step of
        any ``torch.optim.Optimizer``, made before or after. Running means of removed channels are zeroed, and stay zero
        because nothing arrives there. State-dict keys stay the same; deep copies stay pruned; a state dict that is
        loaded later is pruned too. Attaching again replaces what was attached before. ``attach(...).remove()``
        releases the weights (they stay zero until trained).

        Kept weights stay as they are in ``module``: where the masks come with `weights`, call `load_weights` first.

        ``rescale``: True (or ``"layer"``) multiplies the kept weights of each layer by 1/√density, once, so that its
        outputs keep the variance that the initialiser intended; ``"unit"`` does so for each output. By default it is
        done if the masks were made for it (``prune(..., rescale=True)``). A state dict that is loaded later is not
        rescaled, nor are weights that are already pruned, such as those of a checkpoint: they were rescaled before they
        were trained.

        Limits: pickling the whole module (not its state dict) loses the hooks: attach again after loading. An optimizer
        that is not a ``torch.optim.Optimizer`` is held back by zero gradients alone.
        """
        self.check(module)
        how = self.info.get("rescale", "none") if rescale is None else rescale
        module, how = unwrap(module), rescale_named(how)
        return Attachment(module, self._masks, scales_of(self.prunable, module, how) if how != "none" else None)

    @torch.no_grad()
    def load_weights(self, module: nn.Module) -> None:
        """Write the weights that came with the masks (NTT's) into ``module``, over those that it has.

        Call it before training, not after. Raises `MaskError`, and changes nothing, if no weights came with the masks
        or if they belong to another model.
        """
        if not self.weights:
            raise MaskError("no weights came with these masks: training starts from the weights that the model has")
        self.check(module)
        parameters = dict(unwrap(module).named_parameters(remove_duplicate=False))
        for name, weight in self.weights.items():
            if name not in parameters or parameters[name].shape != weight.shape:
                raise MaskError(f"the weights with these masks are for another model: it has no {name!r} like it")
        for name, weight in self.weights.items():
            parameters[name].copy_(weight)

    def check(self, module: nn.Module) -> None:
        """Raise `MaskError` unless every mask names a parameter (or a running mean) of ``module`` and has its shape."""
        parameters = tensors_of(unwrap(module))
        missing = [name for name in self if name not in parameters]
        differ = [name for name in self if name in parameters and parameters[name].shape != self[name].shape]
        if missing:
            raise MaskError(
                f"these masks are for another model: it has no parameter {missing[0]!r} "
                f"({len(missing)} of {len(self)} masks name none of its parameters)"
            )
        if differ:
            name = differ[0]
            raise MaskError(
                f"these masks are for another model: parameter {name!r} has shape {tuple(parameters[name].shape)}, its "
                f"mask {tuple(self[name].shape)} ({len(differ)} of {len(self)} shapes differ)"
            )

    def obeyed_by(self, module: nn.Module) -> bool:
        """Return whether every pruned weight of ``module`` is exactly zero now (under FSDP: of this shard)."""
        self.check(module)
        parameters = tensors_of(unwrap(module))
        return not any(
            torch.any(local_part(parameters[name].detach())[local_mask(~mask, parameters[name])] != 0)
            for name, mask in self.items()
        )

    def obeys(self, pattern: str, module: nn.Module | None = None) -> bool:
        """Return whether every mask obeys a pattern, see `ntksap.pruning.pattern_named`.

        ``module``: the model; needed for masks that were not made here with that pattern, if the weight of a layer does
        not have its outputs first (transposed convolutions, GPT-2's own linear layer).

        ``"channel"``: every mask removes whole outputs and inputs. Which of them belong together is not in the masks;
        `ntksap.compact` takes them out.

        >>> Masks({"fc.weight": torch.tensor([[True, False, True, False]])}).obeys("2:4")
        True
        """
        chosen = pattern_named(pattern)
        views = weight_views({name: tuple(mask.shape) for name, mask in self.prunable.items()}, module)
        for name, groups in self.info.get("inputs_first", {}).items():
            views[name] = WeightView(views[name].shape, groups)
        return all(chosen.obeys(views[name].matrices(mask)) for name, mask in self.prunable.items())

    def save(self, path: str | Path) -> None:
        """Write the masks to a safetensors file (see `ntksap.pruning.mask_file`), all of it or nothing."""
        shapes = {name: tuple(mask.shape) for name, mask in self.items()}
        write_mask_file(path, shapes, self.__getitem__, self.info, self.weights, self.state)

    @classmethod
    def load(cls, path: str | Path) -> "Masks":
        """Read masks from a file that `save` wrote, and check that nothing in it has changed since.

        No code in the file can run. What ``info`` says is up to whoever wrote the file.
        """
        return cls(*read_mask_file(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        return self.keys() == other.keys() and all(torch.equal(self[name], other[name]) for name in self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Masks({len(self)} layers, kept {self.kept:,} of {self.total:,}, density {self.density:.4%})"

    def __str__(self) -> str:
        return layer_table((layer["name"], layer["shape"], layer["kept"]) for layer in self.layers())


def without_followers(masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the masks of prunable weights, see `Masks.prunable`; a plain mapping is returned as it is."""
    return masks.prunable if isinstance(masks, Masks) else masks
