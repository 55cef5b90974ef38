"""`Net`: a functional view of any ``nn.Module`` that leaves the module alone."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ntksap._base import InputError, check_bfloat16, global_seed
from ntksap.net.initialisers import Initialiser, initialiser, variances
from ntksap.net.layers import unwrap
from ntksap.net.layout import Layout, laid_out
from ntksap.net.norms import Norms
from ntksap.net.prunable import Selectors, prunable_names
from ntksap.net.recomputation import refuse_recomputation, uncheckpointed
from ntksap.net.unfused import take_experts_apart

Inputs: TypeAlias = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""What a module is called with: one tensor, positional arguments, or keyword arguments."""

Norm: TypeAlias = str | Mapping[str, Tensor]
"""Which statistics BatchNorm uses: ``"batch"`` (train mode), ``"running"`` (eval mode, the module's own buffers), or
buffers that `Net.statistics` returned (eval mode with those)."""

Kept: TypeAlias = Mapping[str, Tensor] | None
"""Masks by the name of a prunable parameter, or None: everything is kept."""

Slot: TypeAlias = tuple[dict[str, Any], str, str, Tensor]
"""A module's dict of parameters or buffers, a key in it, the name of the tensor that belongs there, and the tensor."""


class Net:
    """A module as a pure function of its parameters, by name.

    ``net(weights, inputs)`` evaluates f(inputs; weights) → Tensor. Nothing here changes the caller's module, its mode,
    buffers, ``requires_grad`` or the global random state: all work happens on a private copy. Modules other than
    BatchNorm always run in evaluation mode, so dropout is off.

    Args:
        module: any ``nn.Module``; ``torch.compile`` and DDP wrappers are looked through.
        output: turns what the module returns into one tensor. By default a tensor is taken as it is, a tuple by its
            first tensor, and an object or dict by its ``logits``.
        loss: (output, labels) → summed loss, for the methods that need one. Cross-entropy by default.
        init: the initialiser that weight draws come from: a name or a callable ``module -> None``.
        include, exclude: what is prunable, see `ntksap.net.prunable.prunable_names`.
        dtype, device: where to compute; the module's own by default, but at least single precision.
        autocast: evaluate in bfloat16 where torch's autocast does; weights, outputs and derivatives stay in dtype.

    >>> net = Net(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> net.prunable
    ('0.weight', '2.weight')
    >>> net(net.weights, torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        output: Callable[[Any], Tensor] | None = None,
        loss: Callable[[Tensor, Any], Tensor] | None = None,
        init: str | Initialiser = "kaiming_normal",
        include: Selectors = None,
        exclude: Selectors = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        autocast: bool = False,
    ) -> None:
        module = unwrap(module)
        for name, tensor in module.named_parameters():
            if nn.parameter.is_lazy(tensor):
                raise InputError(f"parameter {name!r} has no shape yet: call the module once on an input first")
        self.prunable = prunable_names(module, include, exclude)
        self.trainable = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        first = next(iter(module.parameters()))
        self.dtype = dtype or torch.promote_types(first.dtype, torch.float32)  # scores and kernels need 24 bits
        self.device = torch.device(device) if device is not None else first.device
        self.weights = {name: self._place(p.detach()) for name, p in module.named_parameters()}
        self._buffers = {name: b if b.is_meta else b.detach().to(self.device) for name, b in module.named_buffers()}
        if autocast:
            check_bfloat16(self.device)
        self._autocast = autocast
        self._output = output or first_tensor
        self.loss = loss or summed_cross_entropy
        self._init = initialiser(init)
        self._skeleton = private_copy(module)
        self._slots = _slots(self._skeleton)
        self._norms = Norms(self._skeleton)
        refuse_recomputation(self._skeleton)
        self._layout = Layout(self._skeleton, self.device, autocast=autocast)

    def __call__(
        self,
        weights: Mapping[str, Tensor],
        inputs: Inputs,
        *,
        norm: Norm = "running",
        kept: Kept = None,
    ) -> Tensor:
        """Evaluate f(inputs; weights) → Tensor in the dtype of ``weights``, which names every parameter.

        ``kept``: masks of what is not zero in ``weights``. They save time on the weights that they do not keep, whose
        first derivatives may come out as 0, whatever they would be; other derivatives (second order, forward mode) may
        not exist.
        """
        if not isinstance(norm, str):
            return self._forward(weights, inputs, kept, given=norm)
        if norm not in ("batch", "running"):
            raise InputError(f"norm is 'batch', 'running' or statistics, not {norm!r}")
        return self._forward(weights, inputs, kept, batch=norm == "batch")

    @torch.no_grad()
    def statistics(self, weights: Mapping[str, Tensor], inputs: Inputs, *, kept: Kept = None) -> dict[str, Tensor]:
        """Return BatchNorm's mean and unbiased variance of these inputs, from one pass in training mode.

        They are what a layer records in training: while they are taken, each layer normalises by its batch's mean and
        *biased* variance. Pass them as constants, ``norm=``. ``kept`` is as in a call.
        """
        taken: dict[str, Tensor] = {}
        if self._norms.layers:
            self._forward(weights, inputs, kept, batch=True, taken=taken)
        return taken

    @property
    def eps(self) -> float:
        """The relative rounding error of an evaluation."""
        return torch.finfo(torch.bfloat16 if self._autocast else self.dtype).eps

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The module's own buffers by name."""
        return self._buffers

    def norm_buffers(self) -> dict[str, Tensor]:
        """Return the normalisation layers' running means, variances and counts, with the module's own values."""
        names = [f"{path}.{key}".lstrip(".") for path, norm in self._norms.layers.items() for key in norm._buffers]
        return {name: self._buffers[name] for name in names if name in self._buffers}

    def users(self) -> list[tuple[str, nn.Module]]:
        """Return (name, layer) for each layer of the private copy whose ``weight`` is prunable; tied ones share it."""
        layers = {id(part._parameters): part for part in self._skeleton.modules()}
        return [
            (name, layers[id(slots)])
            for slots, key, name, _ in self._slots
            if key == "weight" and name in self.prunable
        ]

    def leaves(self, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``weights`` with the prunable ones replaced by differentiable leaves w = θ⊙m."""
        masked = {name: (weights[name] * masks[name]).requires_grad_() for name in self.prunable}
        return {**weights, **masked}

    def gradient(
        self, scalar: Tensor, leaves: Mapping[str, Tensor], *, create_graph: bool = False
    ) -> dict[str, Tensor]:
        """Return ∂scalar/∂w for each prunable leaf; zero where the output does not depend on it."""
        tensors = [leaves[name] for name in self.prunable]
        if not scalar.requires_grad:  # nothing prunable reaches the output
            return {name: torch.zeros_like(w) for name, w in zip(self.prunable, tensors, strict=True)}
        gradients = torch.autograd.grad(scalar, tensors, create_graph=create_graph, materialize_grads=True)
        return dict(zip(self.prunable, gradients, strict=True))

    def graph_mib(self, leaves: Mapping[str, Tensor], inputs: Inputs) -> float:
        """Return how much memory, in MiB, the graph of one evaluation holds besides the leaves."""
        held = {tensor.untyped_storage().data_ptr() for tensor in leaves.values()}
        saved: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in held:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            output = self(leaves, inputs)  # which keeps the graph, and so the addresses, alive meanwhile
        assert output is not None
        return sum(saved.values()) / 2**20

    def draw(self, *key: int | str) -> dict[str, Tensor]:
        """Return every parameter, newly drawn from the initialiser; the key alone decides what is drawn."""
        parameters = dict(self._skeleton.named_parameters())
        with torch.no_grad(), global_seed(*key):
            for name, parameter in parameters.items():
                parameter.copy_(
                    self.weights[name]
                )  # what the initialiser leaves alone must not depend on earlier draws
            self._init(self._skeleton)
            return {name: self._place(parameter.detach().clone()) for name, parameter in parameters.items()}

    def variances(self) -> dict[str, float]:
        """Return the exact variance of what `draw` draws, by name, where it is known; the mean is 0 there."""
        return variances(self._init, self._skeleton)

    def _forward(self, weights: Mapping[str, Tensor], inputs: Inputs, kept: Kept, **norms: Any) -> Tensor:
        tensors = {**weights, **self._fresh_buffers(weights), **norms.get("given", {})}
        return self._layout.evaluate(lambda layout: self._evaluate(tensors, inputs, norms, layout), inputs, kept)

    def _evaluate(
        self, tensors: Mapping[str, Tensor], inputs: Inputs, norms: dict[str, Any], layout: torch.memory_format
    ) -> Tensor:
        args, kwargs = map_tensors(arguments(inputs), lambda tensor: laid_out(tensor, layout))
        bfloat16 = torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast)
        try:
            # As torch.func.functional_call does, without its checks, which cost as much as a small net.
            for slots, key, name, _ in self._slots:
                slots[key] = laid_out(tensors[name], layout)
            # The seed is for modules that draw noise in their forward pass: the same noise at every evaluation.
            with self._norms.using(**norms), bfloat16, global_seed("forward"), uncheckpointed():
                output = self._output(self._skeleton(*args, **kwargs))
        finally:
            for slots, key, _, own in self._slots:
                slots[key] = own
        return output.to(self.dtype) if self._autocast else output  # before anything cancels

    def _fresh_buffers(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        dtype = next(iter(weights.values())).dtype
        return {
            name: b.to(dtype, copy=True) if b.is_floating_point() else b.clone() for name, b in self._buffers.items()
        }

    def _place(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta:  # a shape without values stays one
            return tensor
        return tensor.to(self.device, self.dtype) if tensor.is_floating_point() else tensor.to(self.device)


def first_tensor(result: Any) -> Tensor:
    """Return the tensor that scores are computed from: the result, its ``logits``, or the first tensor in it."""
    if isinstance(result, Tensor):
        return result
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, tuple | list):
        for item in result:
            if isinstance(item, Tensor):
                return item
    raise InputError(
        f"the module returned {type(result).__name__}, which is not a tensor, a tuple of tensors or an object with "
        ".logits: pass output=, a callable that turns it into one tensor"
    )


def summed_cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy summed over samples (and positions): output (…, K), labels (…)."""
    return nn.functional.cross_entropy(output.flatten(0, -2), labels.flatten(), reduction="sum")


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``inputs`` as positional and keyword arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs), {}


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value``, a tensor or any nest of tuples, lists and dicts, with ``function`` applied to each tensor."""
    return torch.utils._pytree.tree_map_only(Tensor, function, value)


def _slots(module: nn.Module) -> list[Slot]:
    """Return each place where a tensor sits, with the tensor's own name, which differs for tied tensors."""
    own = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    return [
        (slots, key, own[id(tensor)], tensor)
        for part in module.modules()
        for slots in (part._parameters, part._buffers)
        for key, tensor in slots.items()
        if tensor is not None
    ]


def copy_of(module: nn.Module) -> nn.Module:
    """Return a deep copy; `InputError` for a module that has none."""
    # A tensor that is computed from parameters and held by a module (as in the older weight_norm) cannot be copied.
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    memo = {id(tensor): tensor.detach().clone() for tensor in held if not tensor.is_leaf}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise InputError(
            f"the module cannot be copied (copy.deepcopy failed: {error}); scoring needs a copy"
        ) from error


def private_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, in evaluation mode and without gradients, that can be worked with freely."""
    skeleton = copy_of(module)
    take_experts_apart(skeleton)
    # On the CPU, so that draws do not depend on the device. Tensors come from the caller at each evaluation.
    skeleton._apply(lambda tensor: tensor if tensor.is_meta else tensor.cpu())
    return skeleton.eval().requires_grad_(False)
