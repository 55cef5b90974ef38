"""Which layers make logits: numbers that a softmax compares, inside a module or after it."""

import copy
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import Node

from ntksap._base import InputError
from ntksap.net.layers import unwrap
from ntksap.net.net import Inputs, arguments, first_tensor, map_tensors

_PRODUCT = re.compile("mm|Mm|Linear|Convolution|Mv")  # Addmm, Bmm, Mm, GroupedMm, …
_FUSED = "ScaledDotProduct"


def logit_layers(module: nn.Module, inputs: Inputs, output: Callable[[Any], Tensor] | None = None) -> frozenset[str]:
    """Return the names of the weights that make what a softmax compares: queries, keys, routers, the classifier.

    For each softmax in the module, and for its output, these are the nearest weights from which its arguments come.
    They are found in the graph of one evaluation with tensors without values, which computes nothing. A weight that
    makes queries, keys and values together makes logits.

    >>> logit_layers(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), torch.ones(1, 8))
    frozenset({'2.weight'})
    """
    made, names = _traced(module, inputs, output)
    found = set()
    for start in (made.grad_fn, *(node for softmax in _softmaxes(made.grad_fn) for node in _arguments(softmax))):
        found |= {names[id(weight)] for weight in _nearest(start)}
    return frozenset(found)


def has_attention(module: nn.Module, inputs: Inputs, output: Callable[[Any], Tensor] | None = None) -> bool:
    """Return whether a softmax inside the module weighs what later layers see, as in attention and in routers.

    A softmax that only makes the output, after the last layer, is none of these.

    >>> has_attention(nn.Sequential(nn.Linear(8, 2), nn.Softmax(-1)), torch.ones(1, 8))
    False
    """
    made, _ = _traced(module, inputs, output)
    last = set(_graph(made.grad_fn, lambda node: bool(_PRODUCT.search(node.name()))))
    return any(node.name().startswith(_FUSED) or node not in last for node in _softmaxes(made.grad_fn))


def nodes_after_layers(output: Tensor) -> set[Node]:
    """Return the nodes of the graph of an output that no product of signals or weights follows, up to these.

    A product with a constant is none; one of two signals is, such as that of a gate and what it lets through.
    """

    def multiplies(node: Node) -> bool:
        factors = [part for part, _ in node.next_functions if part is not None]
        return bool(_PRODUCT.search(node.name())) or (node.name().startswith("Mul") and len(factors) > 1)

    return set(_graph(output.grad_fn, multiplies))


def _traced(module: nn.Module, inputs: Inputs, output: Callable[[Any], Tensor] | None) -> tuple[Tensor, dict[int, str]]:
    try:
        return _evaluated(unwrap(module), inputs, output or first_tensor, lambda dtype: dtype)
    except Exception as first:
        try:  # some of torch's products have a shape rule only this way
            return _evaluated(unwrap(module), inputs, output or first_tensor, lambda dtype: torch.bfloat16)
        except Exception:
            raise InputError(
                "an evaluation without values shows which layers make logits, and this module asks for values "
                f"({str(first).splitlines()[0]}): use the allocation 'erk'"
            ) from first


def _evaluated(
    module: nn.Module,
    inputs: Inputs,
    output: Callable[[Any], Tensor],
    dtype_of: Callable[[torch.dtype], torch.dtype],
) -> tuple[Tensor, dict[int, str]]:
    """Return the output of a module without values, with its graph, and the names of the parameters that are in it."""

    def like(tensor: Tensor) -> Tensor:
        return torch.empty_like(
            tensor, dtype=dtype_of(tensor.dtype) if tensor.is_floating_point() else tensor.dtype, device="cpu"
        )

    with _unlogged(), FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(False), torch.enable_grad():
        memo: dict[int, Any] = {id(p): nn.Parameter(like(p)) for p in module.parameters()}
        memo |= {id(buffer): like(buffer) for buffer in module.buffers()}
        empty = copy.deepcopy(module, memo).eval()
        args, kwargs = map_tensors(arguments(inputs), like)
        return output(empty(*args, **kwargs)), {id(parameter): name for name, parameter in empty.named_parameters()}


@contextmanager
def _unlogged() -> Iterator[None]:
    """Inside the block, torch does not log that an operator has no shape rule: the caller is told by an error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _softmaxes(end: Node | None) -> Iterator[Node]:
    """Yield the nodes of the graph that are a softmax, or attention in one function."""
    for node in _graph(end, lambda node: False):
        if node.name().startswith(_FUSED) or "Softmax" in node.name():  # also LogSoftmax, SafeSoftmax, MaskedSoftmax
            yield node


def _arguments(softmax: Node) -> list[Node | None]:
    """Return the nodes that make what is compared: of attention in one function, queries and keys."""
    compared = 2 if softmax.name().startswith(_FUSED) else 1
    return [part for part, _ in softmax.next_functions[:compared]]


def _nearest(start: Node | None) -> set[Tensor]:
    """Return the first weights that are met on all ways back from a node."""
    found: set[Tensor] = set()

    def is_layer(node: Node) -> bool:
        parts = [_parameter(part) for part, _ in node.next_functions] if _PRODUCT.search(node.name()) else []
        weights = [part for part in parts if part is not None and part.dim() > 1]
        found.update(weights)
        return bool(weights)

    for _ in _graph(start, is_layer):
        pass
    return found


def _graph(start: Node | None, stops: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the nodes that ``start`` comes from, each once, without those reached only through one that stops."""
    open_, seen = [start], {start}
    while open_:
        node = open_.pop()
        if node is None:
            continue
        yield node
        if not stops(node):
            new = {part for part, _ in node.next_functions} - seen
            seen |= new
            open_.extend(new)


def _parameter(node: Node | None) -> Tensor | None:
    """Return the parameter that a node only moves or casts, if it does nothing else."""
    while node is not None:
        if (variable := getattr(node, "variable", None)) is not None:
            assert isinstance(variable, Tensor)
            return variable
        if len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None
