"""Keep pruned weights at zero while someone else's code trains the module."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that masks may name: parameters, under every name that they have, and buffers."""
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


class Attachment:
    """Masks at work on a module: pruned weights are zero, and hooks keep them so until `remove`.

    Four hooks, because each covers a way in which weights change:

    - a gradient hook on each parameter: pruned weights are in no norm, and most optimizers add exactly 0. FSDP2 writes
      the gradients of sharded parameters itself, past autograd, but calls the hooks that come after accumulation;
    - a hook after each step of any optimizer of torch, for the steps that are not 0 where the gradient is: Adam's in
      float16, where 0/(√0 + ε) is 0/0, those that mix the entries of a matrix (Muon, Shampoo, SOAP), and momentum from
      before the masks were attached;
    - a ``__deepcopy__`` on each parameter, since a copied parameter loses its gradient hooks;
    - a hook after ``load_state_dict`` on the module, since a state dict may bring dense weights or new parameters.
    """

    def __init__(
        self, module: nn.Module, masks: Mapping[str, Tensor], scales: Mapping[str, Tensor] | None = None
    ) -> None:
        """Prune ``module`` and multiply its kept weights by ``scales``, if there are any, see `Masks.attach`."""
        before = [hook for hook in module._load_state_dict_post_hooks.values() if isinstance(hook, Attachment)]
        for hook in before:
            hook.remove(module)
        buffers = dict(module.named_buffers())
        self._pruned = {name: ~mask for name, mask in masks.items() if name not in buffers}
        self._cleared = {name: ~mask for name, mask in masks.items() if name in buffers}
        self._scales: dict[str, Tensor] = dict(before[0]._scales) if before else {}
        """The factors that kept weights have been multiplied by, where not 1: it must not happen twice."""
        if scales is not None:
            self._rescale(module, scales, known=bool(before))
        _watch_optimizers()
        self._apply(module)
        self._module = module
        self.awaits_others = False
        """Whether other masks for the module may still be loaded, so that weights elsewhere are no mistake."""
        self._handle = module.register_load_state_dict_post_hook(self)

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        """Prune again what ``load_state_dict`` has just written; warn if that was pruned with other masks."""
        if not (self.awaits_others and module is self._module):
            self._warn_of_others(module)
        self._apply(module)

    def record(self, gradients: dict[str, Tensor] | None) -> None:
        """Add to ``gradients``, by name, every gradient from now on, with the entries of pruned weights; None stops.

        Before anything else sees them: under DDP they are those of this process alone.
        """
        parameters = dict(self._module.named_parameters(remove_duplicate=False))
        for name in self._pruned:
            hold = parameters[name].__dict__.get("__deepcopy__")
            if isinstance(hold, _Hold):
                hold.listen()
                hold.record = None if gradients is None else partial(_add_to, gradients, name)

    def remove(self, module: nn.Module | None = None) -> None:
        """Let the weights go: take the hooks off ``module`` (by default the one that the masks were attached to)."""
        module = module if module is not None else self._module
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name in self._pruned:
            _release(parameters[name])
        for key, hook in list(module._load_state_dict_post_hooks.items()):
            if hook is self:
                del module._load_state_dict_post_hooks[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Attachment":
        return self  # it is never changed, and it is told which module it works on

    @torch.no_grad()
    def _rescale(self, module: nn.Module, scales: Mapping[str, Tensor], *, known: bool) -> None:
        """Multiply kept weights by the scales that have not been applied to them yet.

        Weights that another process has trained come without a record of that. But then all pruned ones are zero,
        which fresh ones are not: such weights are left as they are.
        """
        parameters = dict(module.named_parameters(remove_duplicate=False))
        if not known and any(pruned.any() for pruned in self._pruned.values()) and self._is_pruned(parameters):
            self._scales = dict(scales)
            return
        for name, scale in scales.items():
            factor = scale / self._scales.get(name, torch.ones((), device="cpu"))
            weight = local_part(parameters[name])
            weight.mul_(
                (local_mask(factor, parameters[name]) if factor.dim() else factor.to(weight.device)).to(weight.dtype)
            )
        self._scales = dict(scales)

    def _is_pruned(self, parameters: Mapping[str, nn.Parameter]) -> bool:
        return not any(
            torch.any(local_part(parameters[name])[local_mask(pruned, parameters[name])] != 0)
            for name, pruned in self._pruned.items()
        )

    def _warn_of_others(self, module: nn.Module) -> None:
        """Warn if weights have moved: some are not zero that these masks prune, and as many are zero that they keep.

        (Or more, since those that have just grown are still zero.) In dense weights the former are the majority, those
        that are pruned further or less have none of one kind, and where an initialiser leaves zeros, they are nearly
        all of them.
        """
        parameters = dict(module.named_parameters(remove_duplicate=False))
        lost = 0
        for name, pruned in self._pruned.items():
            values = local_part(parameters[name].detach())
            if not values.is_meta:
                zero, pruned = values == 0, local_mask(pruned, parameters[name])
                missing, there = int((zero & ~pruned).sum()), int((~zero & pruned).sum())
                lost += there if missing / 10 <= there <= missing else 0
        if lost:
            warnings.warn(
                "the weights just loaded seem to have been pruned with other masks than those attached here, which "
                f"have set {lost} more to zero: masks that change in training belong with the weights, so attach those "
                "first (or load the state of their Regrowth next)",
                stacklevel=5,
            )

    @torch.no_grad()
    def _apply(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, pruned in self._pruned.items():
            parameter = parameters[name]
            hold = _hold(parameter, pruned)
            hold.zero_weights(parameter)
            hold.zero_gradient(parameter)
        for name, cleared in self._cleared.items():
            buffer = module.get_buffer(name)
            buffer.masked_fill_(cleared.to(buffer.device), 0)


class _Hold:
    """The gradient hook of one parameter, and how to copy that parameter with it."""

    def __init__(self, parameter: nn.Parameter, pruned: Tensor) -> None:
        self.parameter = parameter
        self.pruned = pruned
        self.local = local_mask(pruned, parameter)
        self.bits: Tensor | None = None
        self.handle: RemovableHandle | None = None
        self.record: Callable[[Tensor], None] | None = None
        self.listen()

    def listen(self) -> None:
        """Hook the gradient, unless it is hooked already or the parameter is frozen and has none."""
        if self.handle is not None:
            return
        if is_sharded(self.parameter):
            self.handle = self.parameter.register_post_accumulate_grad_hook(self.zero_gradient)
        elif self.parameter.requires_grad:
            self.handle = self.parameter.register_hook(self.zeroed)

    def zeroed(self, gradient: Tensor) -> Tensor:
        """Return a gradient, of a parameter that is not sharded, with zeros for pruned weights."""
        if self.record is not None:
            self.record(gradient)
        integer = _integer_of(gradient)
        if integer is None:
            return gradient.masked_fill(self._local_on(gradient.device), 0)
        return (gradient.view(integer) & self._bits_like(gradient, integer)).view(gradient.dtype)

    def zero_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._zero(local_part(parameter.grad))

    def zero_weights(self, parameter: Tensor) -> None:
        self._zero(local_part(parameter))

    def _zero(self, values: Tensor) -> None:
        """Set values to zero where weights are pruned, whatever they are: NaN times zero would be NaN."""
        integer = _integer_of(values)
        if integer is None:
            values.masked_fill_(self._local_on(values.device), 0)
        else:
            values.view(integer).bitwise_and_(self._bits_like(values, integer))

    def _local_on(self, device: torch.device) -> Tensor:
        if self.local.device != device:
            self.local = self.local.to(device)
        return self.local

    def _bits_like(self, values: Tensor, integer: torch.dtype) -> Tensor:
        """Return integers with all bits set where weights are kept, and none where they are pruned.

        Those of a small layer are remembered as wide as the weights and laid out like them, which saves a conversion
        every time; those of a large one would take too much memory.
        """
        if self.bits is None or self.bits.dtype != integer:
            narrow = self._local_on(torch.device("cpu")).view(torch.int8) - 1
            if narrow.numel() > _FEW:
                return narrow
            self.bits = torch.empty_like(values, dtype=integer).copy_(narrow)
        return self.bits

    def __call__(self, memo: dict[int, Any]) -> nn.Parameter:
        copied: nn.Parameter = type(self.parameter).__deepcopy__(self.parameter, memo)
        _hold(copied, self.pruned)
        return copied

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a pickled parameter forgets its hooks, as is usual in torch


_FEW = 2**20
"""A layer with at most this many weights is small."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _integer_of(values: Tensor) -> torch.dtype | None:
    """Return the integers as which the bits of these values can be cleared; None where they must be filled instead.

    On a CPU, torch fills under a mask one number at a time. It clears the bits of many integers at once, but has no
    derivative of that, so values that are part of a graph are filled.
    """
    if values.is_cpu and values.grad_fn is None and values.is_floating_point():
        return _INTEGERS.get(values.itemsize)
    return None


def _add_to(gradients: dict[str, Tensor], name: str, gradient: Tensor) -> None:
    before = gradients.get(name)
    gradients[name] = gradient.detach().clone() if before is None else before + gradient.detach()


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor: each process has a part. (Importing that class takes half as long as torch itself.)"""
    return hasattr(tensor, "device_mesh")


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process has, to read or change; an ordinary tensor unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return the part of ``mask`` that belongs to `local_part` of ``like``, on its device."""
    if is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
        return distribute_tensor(mask.to(like.device), mesh, placements, src_data_rank=None).to_local()
    return mask.to(like.device)


@cache
def _watch_optimizers() -> None:
    """Watch all optimizers, once per process: those made before the masks are attached and those made after."""
    register_optimizer_step_post_hook(_zero_again)


@torch.no_grad()
def _zero_again(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Prune again the held parameters of an optimizer that has just made a step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            hold = parameter.__dict__.get("__deepcopy__")
            if isinstance(hold, _Hold):
                hold.zero_weights(parameter)


def _hold(parameter: nn.Parameter, pruned: Tensor) -> _Hold:
    before = _release(parameter)
    parameter.__deepcopy__ = hold = _Hold(parameter, pruned)  # type: ignore[method-assign]
    hold.record = before.record if before is not None else None  # whoever listens keeps listening
    return hold


def _release(parameter: nn.Parameter) -> _Hold | None:
    hold = parameter.__dict__.pop("__deepcopy__", None)
    if not isinstance(hold, _Hold):
        return None
    if hold.handle is not None:
        hold.handle.remove()
    return hold
