"""The graph of a module, read with ``torch.export``: nodes in the order in which they run, and what its tensors are."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from ntksap._base import InputError
from ntksap.net import Inputs, arguments, unwrap


@dataclass(frozen=True)
class Graph:
    """The operators that a module runs on its example inputs.

    Attributes:
        nodes: placeholders and operators in order (torch.fx nodes of ATen operators; in-place ones are read as if they
            returned a new tensor).
        stored: {placeholder: the name of its parameter or buffer}; tied tensors have one name.
        constants: {placeholder: a tensor that the module's code made}.
        outputs: the nodes that the module returns.
    """

    nodes: tuple[fx.Node, ...]
    stored: Mapping[fx.Node, str]
    constants: Mapping[fx.Node, Tensor]
    outputs: frozenset[fx.Node]


def read_graph(module: nn.Module, example_inputs: Inputs) -> Graph:
    """Return the graph of ``module`` in evaluation mode on ``example_inputs``; the module stays as it is.

    Args:
        module: any module that ``torch.export`` can follow.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments.

    Raises `InputError` where the module's forward pass depends on the values of tensors, so that there is no one graph.
    """
    module = unwrap(module)
    args, kwargs = arguments(example_inputs)
    try:
        with evaluating(module), torch.no_grad(), warnings.catch_warnings():  # no_grad: its blocks then need no node
            warnings.simplefilter("ignore")  # from torch.export about itself
            program = torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # whatever the module's code raises where it is traced
        summary = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"the module's graph cannot be read by torch.export ({summary}); give example_inputs that its forward pass "
            "accepts, and let no branch depend on the values of tensors"
        ) from error
    _name_in_place_results(program.graph)
    nodes = tuple(program.graph.nodes)
    stored: dict[fx.Node, str] = {}
    constants: dict[fx.Node, Tensor] = {}
    names = _own_names(module)
    specs = program.graph_signature.input_specs
    for node, spec in zip((n for n in nodes if n.op == "placeholder"), specs, strict=True):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target is not None:
            stored[node] = names[spec.target]
        elif spec.kind == InputKind.CONSTANT_TENSOR and spec.target is not None:
            constants[node] = program.constants[spec.target]
    returned = frozenset(nodes[-1].all_input_nodes)
    used = _used(nodes[-1])
    return Graph(tuple(node for node in nodes[:-1] if node in used), stored, constants, returned)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set ``module`` to evaluation mode inside the block, with attention written out in operators that have rules."""
    training = {part: part.training for part in module.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        module.eval()
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for part, flag in training.items():
            part.training = flag


def operator_name(node: fx.Node) -> str:
    """Return the plain name of a node's operator: ``"add"`` for ``aten.add_.Tensor``."""
    if isinstance(node.target, torch._ops.OpOverload):
        name = str(node.target.overloadpacket.__name__)
        return name if name.startswith("__") else name.rstrip("_")
    return str(getattr(node.target, "__name__", node.target))


def owner_of(node: fx.Node) -> str:
    """Return the dotted path of the module whose code runs the node; ``""`` is the whole module."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    return _plain_path(next(reversed(stack.values()))[0])


def described(node: fx.Node) -> str:
    """Return where a node is, for messages."""
    return f"{operator_name(node)} in {owner_of(node) or 'the module itself'}"


def _plain_path(path: str) -> str:
    """Return a module path without the mark that export gives to later calls of one module (``"fc@1"``)."""
    return ".".join(part.split("@")[0] for part in path.split("."))


def _own_names(module: nn.Module) -> dict[str, str]:
    """Return {any name of a parameter or buffer: its first name}."""
    first: dict[int, str] = {}
    named: list[tuple[str, Tensor]] = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _used(output: fx.Node) -> set[fx.Node]:
    """Return the nodes that the output depends on."""
    found, waiting = set(), [output]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def in_place_write(before: Tensor, written: Tensor) -> Tensor:
    """Stand for a tensor that a write into another view of its memory has changed; no rule follows that."""
    raise NotImplementedError


def _name_in_place_results(graph: fx.Graph) -> None:
    """Let what runs after an in-place operator read its result, not the tensor that it overwrote.

    Tensors that share the overwritten memory have changed too. Those that are read later become an `in_place_write`,
    which has no rule, so that it freezes what it touches and is named.
    """
    order: dict[fx.Node, float] = {node: place for place, node in enumerate(graph.nodes)}
    memory = _memory(graph)
    for node in list(graph.nodes):
        if not _writes(node):
            continue
        first, target = node.args[0], node.target
        earlier = [other for other in order if order[other] < order[node] and memory[other] is memory[first]]
        for other in earlier:
            later = [user for user in other.users if order[user] > order[node]]
            if other is first or not later:
                continue
            with graph.inserting_after(node):
                changed = graph.call_function(in_place_write, (other, node))
            changed.meta = {**node.meta, "val": other.meta["val"]}
            order[changed], memory[changed] = order[node], memory[first]
            for user in later:
                user.replace_input_with(other, changed)
        for user in [user for user in first.users if order[user] > order[node]]:
            user.replace_input_with(first, node)
        pure = getattr(torch.ops.aten, operator_name(node), None)
        if pure is not None and target._overloadname in pure.overloads():
            node.target = getattr(pure, target._overloadname)


def _writes(node: fx.Node) -> bool:
    """Whether a node overwrites its first argument."""
    target = node.target
    if not (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and node.args):
        return False
    return isinstance(node.args[0], fx.Node) and target._schema.arguments[0].alias_info is not None


def _memory(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return for each node the one whose memory it may share: itself, or what it is a view or a part of."""
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        shares = node.target is getitem
        if isinstance(node.target, torch._ops.OpOverload):
            shares = any(result.alias_info is not None for result in node.target._schema.returns)
        found[node] = found[first] if shares and isinstance(first, fx.Node) else node
    return found


def shape_of(node: fx.Node) -> Any:
    """Return the shape of a node's result, a list of them for several results, None for none."""
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return tuple(int(size) for size in value.shape)
    if isinstance(value, tuple | list):
        return [tuple(int(size) for size in v.shape) if isinstance(v, Tensor) else None for v in value]
    return None
