"""Regrowth: masks that change while the network trains (SET, RigL), with the same number in every layer at every step.

Every ΔT steps until the share u of all steps, each layer drops its smallest weights and grows as many elsewhere:

- *how many*: ⌊kept · α/2 · (1 + cos(π t / T))⌋ after step t, T = u · steps;
- *dropped*: the smallest |w|;
- *grown*: among those not kept then, at random (SET, Mocanu et al. 2018), or where the gradient of the loss with
  respect to all weights, pruned ones too, is largest (RigL, Evci et al. 2020).

New weights start at 0, and the optimizer holds no state for them yet. A weight that is dropped and grown in the same
change stays as it was.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ntksap._base import InputError, MaskError, Ranks, generator_of, unknown
from ntksap.net import unwrap
from ntksap.pruning.arguments import checked_whole
from ntksap.pruning.attach import is_sharded
from ntksap.pruning.masks import Masks
from ntksap.pruning.selection import select

Regrow: TypeAlias = Literal["set", "rigl"]
"""Where weights grow: at random, or where the gradient is largest."""


class Regrowth:
    """Changes the masks of a model in training: one call of `step` after each step of the optimizer.

    The masks are attached to the model (see `Masks.attach`); any foresight mask can be the start. With
    ``DistributedDataParallel`` the gradient is that of all processes, and one of them chooses for all.

    Args:
        model: the module in training, wrapped by DDP or not.
        masks: where to start; every layer keeps as many weights as here. Single weights only, no pattern.
        optimizer: its state is cleared where weights are dropped or grown: every tensor of the parameter's shape.
        steps: how many steps the whole training has.
        method: ``"rigl"`` or ``"set"``.
        interval: ΔT, the number of steps from one change to the next.
        fraction: α, the share of a layer's kept weights that change at first; 0 < α ≤ 1.
        until: u, the share of the training after which masks stay as they are; 0 < u ≤ 1.
        seed: decides what SET grows, together with the number of the step and the layer's name.
        group: the processes that share each batch, where the model is not wrapped by DDP.

    A layer stays as it is while it is frozen, keeps everything, changes less than one weight, or has no gradient. If a
    weight or gradient is not finite (a step that ``GradScaler`` skips), that change is skipped. A training too short
    for a single change gets a warning.

    Raises `InputError` for settings out of range, patterns, FSDP, or masks that name one parameter twice.

    >>> from ntksap.pruning import Masks
    >>> model, mask = nn.Linear(4, 2), torch.tensor([[True, True, False, False]] * 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    >>> regrowth = Regrowth(model, Masks({"weight": mask}), optimizer, steps=20, interval=5, fraction=0.5)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(3, 4)).square().sum().backward()
    ...     optimizer.step()
    ...     changed = regrowth.step()
    >>> regrowth.masks.kept, regrowth.masks.obeyed_by(model)
    (4, True)
    """

    def __init__(
        self,
        model: nn.Module,
        masks: Mapping[str, Tensor],
        optimizer: Optimizer,
        *,
        steps: int,
        method: Regrow = "rigl",
        interval: int = 100,
        fraction: float = 0.3,
        until: float = 0.75,
        seed: int = 0,
        group: ProcessGroup | None = None,
    ) -> None:
        if method not in get_args(Regrow):
            raise unknown("way to regrow", method, get_args(Regrow))
        for name, share in (("fraction", fraction), ("until", until)):
            if not 0 < share <= 1:
                raise InputError(f"{name} of regrowth is a share, more than 0 and at most 1, not {share!r}")
        self._steps = checked_whole("steps", steps, least=1)
        self._interval = checked_whole("interval", interval, least=1)
        self._method, self._fraction, self._until = method, fraction, until
        self._seed = checked_whole("seed", seed)
        self.masks = masks if isinstance(masks, Masks) else Masks(masks)
        """The present masks."""
        check_regrows(self.masks.info.get("pattern"))
        self._start = self.masks
        self._model, self._optimizer = unwrap(model), optimizer
        if any(is_sharded(parameter) for parameter in self._model.parameters()):
            raise InputError("regrowth ranks the weights of a whole layer, and FSDP has cut them up: train with DDP")
        self._check_names()
        if self._interval >= self._until * self._steps:
            warnings.warn(
                f"the masks will not change: they do so every {interval} steps, and only before step "
                f"{self._until * self._steps:g} (until={until:g} of {steps}). Choose a smaller interval",
                stacklevel=2,
            )
        self._ranks = Ranks(group or _group_of(model))
        self._taken = 0
        self._gradients: dict[str, Tensor] = {}
        self._attachment = self.masks.attach(model)
        self._attachment.awaits_others = True  # a model's state may be loaded before that of its regrowth
        self._listen()

    @property
    def listening(self) -> bool:
        """Whether the next step needs the gradient of pruned weights too, so not inside `ntksap.sparse_kernels`."""
        return self._method == "rigl" and self._due(self._taken + 1)

    def step(self) -> bool:
        """Count the step that the optimizer has just made; change the masks if it is time to.

        Returns whether they changed: `masks` is then another object.
        """
        self._taken += 1
        changed = self._due(self._taken) and self._change()
        self._listen()
        return changed

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume: steps taken, the masks of the start and of now, and the kept weights."""
        weights = self._weights()
        kept = {name: weights[name].detach().cpu()[mask].clone() for name, mask in self.masks.items()}
        masks = {name: mask.clone() for name, mask in self.masks.items()}
        return {"step": self._taken, "start": self._start.sha256, "masks": masks, "kept": kept}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Carry on where `state_dict` was called, on a model and optimizer that are loaded as usual, before or after.

        This object must start with the same masks as that one did. They have set weights elsewhere to zero, and may
        have rescaled the others: all come back from ``state``. Raises `MaskError`, and changes nothing, if ``state``
        belongs to another training.
        """
        missing = {"step", "start", "masks", "kept"} - state.keys()
        if missing:
            raise MaskError(f"this is not a state of regrowth: it has no {sorted(missing)[0]!r}")
        masks = moved(self._start, state["masks"], self._method)
        if state["start"] != self._start.sha256:
            raise MaskError("this state belongs to another training, which started with other masks")
        self._taken = checked_whole("step", state["step"])
        self._attach(masks)
        weights = self._weights()
        for name, values in state["kept"].items():
            weights[name][masks[name].to(weights[name].device)] = values.to(weights[name])
        self._listen()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Regrowth":
        raise InputError("a copied regrowth would not know the copied model: make one for it, and load the state_dict")

    def _weights(self) -> dict[str, Tensor]:
        return dict(self._model.named_parameters(remove_duplicate=False))

    def _check_names(self) -> None:
        """Raise if a parameter has several masks, which would change apart."""
        names: dict[int, str] = {}
        for name, weight in self._weights().items():
            if name in self.masks and names.setdefault(id(weight), name) != name:
                raise InputError(f"{names[id(weight)]!r} and {name!r} are one parameter: leave out one of its masks")

    def _due(self, step: int) -> bool:
        return step % self._interval == 0 and step < self._until * self._steps

    def _listen(self) -> None:
        self._gradients = {}
        self._attachment.record(self._gradients if self.listening else None)

    @torch.no_grad()
    def _change(self) -> bool:
        weights = self._weights()
        gradients = {}
        if self._method == "rigl":
            for name in self.masks:  # even those without a gradient, since every process must take part
                own = self._gradients.get(name)
                own = torch.zeros_like(weights[name]) if own is None else own
                gradients[name] = self._ranks.add(own.to(torch.promote_types(own.dtype, torch.float32))).abs()
        chosen = self._ranks.from_first(lambda: self._choose(weights, gradients))
        if not chosen:
            return False
        for name, mask in chosen.items():
            changed = (mask ^ self.masks[name]).to(weights[name].device)
            for held in self._optimizer.state.get(weights[name], {}).values():
                if isinstance(held, Tensor) and held.shape == changed.shape:
                    held.masked_fill_(changed.to(held.device), 0)
        self._attach(moved(self._start, {**self.masks, **chosen}, self._method))
        return True

    def _choose(self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the masks that change, by name."""
        finite = [t.isfinite().all() for t in (*gradients.values(), *(weights[name] for name in self.masks))]
        if not all(finite):
            return {}
        share = fraction_at(self._taken, self._steps, self._fraction, self._until)
        chosen = {}
        for name, mask in self.masks.items():
            count = int(share * int(mask.sum()))
            if count == 0 or mask.all() or not weights[name].requires_grad:
                continue
            if self._method == "set":
                generator = generator_of(self._seed, "set", self._taken, name)
                growth = torch.rand(mask.shape, generator=generator, dtype=torch.float64, device="cpu")
            else:
                growth = gradients[name].cpu()
                self._check_heard(name, growth, mask)
            if growth.any():
                chosen[name] = regrown(weights[name], mask, growth, count)
        return {name: mask for name, mask in chosen.items() if not torch.equal(mask, self.masks[name])}

    def _check_heard(self, name: str, gradient: Tensor, mask: Tensor) -> None:
        """Raise if the layer computes gradients of its kept weights alone."""
        layer = self._model.get_submodule(name.rpartition(".")[0])
        ours = type(layer).__module__.startswith("ntksap.net.kernels")
        if ours and gradient[mask].any() and not gradient[~mask].any():
            raise InputError(
                f"the gradient of the pruned weights of {name!r} was not computed: leave the block of sparse_kernels "
                "for a step before which regrowth.listening is True, and enter it with regrowth.masks after a change"
            )

    def _attach(self, masks: Masks) -> None:
        self.masks = masks
        self._attachment = masks.attach(self._model)


def moved(start: Masks, masks: Mapping[str, Tensor], method: str) -> Masks:
    """Return what has become of the masks ``start`` in training, with their info, which says by which method.

    The weights are already rescaled, and are no longer those that may have come with ``start``. Raises `MaskError` if
    ``masks`` cannot come from ``start``: they are for other layers, or keep other numbers of weights.
    """
    sizes = [{name: (mask.shape, int(mask.sum())) for name, mask in one.items()} for one in (start, masks)]
    if sizes[0] != sizes[1]:
        raise MaskError("these masks belong to another training: their layers keep other numbers of weights")
    info = {key: value for key, value in start.info.items() if key != "rescale"}
    return Masks({name: masks[name] for name in start}, {**info, "regrown": method})


def fraction_at(step: int, steps: int, fraction: float = 0.3, until: float = 0.75) -> float:
    """Return the share of a layer's kept weights that changes after ``step`` of ``steps``: α/2 · (1 + cos(π t / T)).

    T = until · steps; from there on, none.

    >>> [round(fraction_at(step, 400), 6) for step in (0, 100, 150, 300)]
    [0.3, 0.225, 0.15, 0.0]
    """
    end = until * steps
    return fraction / 2 * (1 + math.cos(math.pi * step / end)) if step < end else 0.0


def regrown(weight: Tensor, mask: Tensor, growth: Tensor, count: int) -> Tensor:
    """Return ``mask`` without its ``count`` smallest |weight| and with the ``count`` largest of ``growth`` elsewhere.

    "Elsewhere" is whatever is not kept after the first half, the dropped ones included; ties go to the lower index.

    >>> regrown(torch.tensor([3.0, -1.0, 0.0]), torch.tensor([True, True, False]), torch.tensor([0.0, 1.0, 2.0]), 1)
    tensor([ True, False,  True])
    """
    kept, mask = int(mask.sum()), mask.cpu()
    stays = select({"": weight.detach().abs()}, 0, within={"": mask}, counts={"": kept - count})[""]
    return stays | select({"": growth}, 0, within={"": ~stays}, counts={"": count})[""]


def check_regrows(pattern: str | None) -> None:
    """Raise `InputError` for masks of a pattern, which single weights that come and go would break."""
    if pattern:
        raise InputError(
            f"regrowth moves single weights, which would break the pattern {pattern} of these masks: train them as "
            "they are, or prune without a pattern"
        )


def _group_of(model: nn.Module) -> ProcessGroup | None:
    """Return the process group of a DDP wrapper around or inside the model."""
    found = [part.process_group for part in model.modules() if isinstance(part, DistributedDataParallel)]
    return found[0] if found else None
