"""Which layers make logits: numbers that a softmax compares, inside a module or after it."""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import Node

from ntksap._base import InputError
from ntksap.net.layers import unwrap
from ntksap.net.net import Inputs, arguments, first_tensor, map_tensors

_PRODUCT = re.compile("mm|Mm|Linear|Convolution|Mv")  # Addmm, Bmm, Mm, GroupedMm, …


def logit_layers(module: nn.Module, inputs: Inputs, output: Callable[[Any], Tensor] | None = None) -> frozenset[str]:
    """Return the names of the weights that make what a softmax compares: queries, keys, routers, the classifier.

    For each softmax in the module, and for its output, these are the nearest weights from which its arguments come.
    They are found in the graph of one evaluation with tensors without values, which computes nothing. A weight that
    makes queries, keys and values together makes logits.

    >>> logit_layers(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), torch.ones(1, 8))
    frozenset({'2.weight'})
    """
    try:
        made, names = _evaluated(unwrap(module), inputs, output or first_tensor, lambda dtype: dtype)
    except Exception as first:
        try:  # some of torch's products have a shape rule only this way
            made, names = _evaluated(unwrap(module), inputs, output or first_tensor, lambda dtype: torch.bfloat16)
        except Exception:
            raise InputError(
                "an evaluation without values shows which layers make logits, and this module asks for values "
                f"({str(first).splitlines()[0]}): use the allocation 'erk'"
            ) from first
    found = set()
    for start in _logits(made.grad_fn):
        found |= {names[id(weight)] for weight in _nearest(start)}
    return frozenset(found)


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

    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        memo: dict[int, Any] = {id(p): nn.Parameter(like(p)) for p in module.parameters()}
        memo |= {id(buffer): like(buffer) for buffer in module.buffers()}
        empty = copy.deepcopy(module, memo).eval()
        args, kwargs = map_tensors(arguments(inputs), like)
        return output(empty(*args, **kwargs)), {id(parameter): name for name, parameter in empty.named_parameters()}


def _logits(end: Node | None) -> Iterator[Node | None]:
    """Yield the nodes of the graph that make the arguments of each softmax, and the last one."""
    yield end
    for node in _graph(end, lambda node: False):
        if node.name().startswith("ScaledDotProduct"):
            yield from (part for part, _ in node.next_functions[:2])
        elif "Softmax" in node.name():  # also LogSoftmax, SafeSoftmax, MaskedSoftmax
            yield node.next_functions[0][0]


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
