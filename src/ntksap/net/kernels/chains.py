"""Finds convolutions that BatchNorm, a sum and a ReLU follow, in the code of any module, so that they can be one.

A module's own ``forward`` is followed once, with torch.fx, and only where it must always do the same: its code may read
nothing but submodules (and attributes that are None) and call nothing but torch. What depends on ``self.training``, on
chance or on other attributes is left alone, and so is what cannot be followed.
"""

import dis
import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn import functional

from ntksap.net.kernels.compiler import Unscriptable, refuse_recording
from ntksap.net.kernels.sparse_conv import suits

_PURE = {"nn", "functional", "relu", "relu_", "add", "flatten"}
"""What such code may name of torch and of tensors."""

FEW = 2**16
"""Of fewer numbers than this, nothing needs to be done as one: they stay in the cache from one layer to the next."""

_SUMS = (operator.add, torch.add)
_RELUS = (functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_")
"""Functions, and names of methods."""


@dataclass(frozen=True)
class Link:
    """Layers of a module that follow one another, by their names; a ReLU may also be a function, or missing."""

    conv: str
    norm: str
    adds: bool
    relu: str | Callable[[Tensor], Tensor] | None

    def __str__(self) -> str:
        return f"{self.conv} + {self.norm}{' + sum' * self.adds}{' + ReLU' * (self.relu is not None)}"


class Borrowed(Unscriptable):
    """A base of classes that are made for a single class of modules, ``_own``, which they have for a while."""

    _own: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let copies and pickles made inside the block have the module's own class, which can be imported."""
        state = {name: value for name, value in self.__dict__.items() if not name.startswith(_ATTRIBUTES)}
        return _bare, (self._own,), state


_ATTRIBUTES = ("_chain_", "_settlement")
"""How attributes begin that modules have only as long as they have such a class."""


class Chained(Borrowed):
    """What a module becomes for a while: it does what its own code does, but chains as one, which are attributes.

    ``_followed`` is that code as torch.fx wrote it.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        """Return what the module itself would return."""
        if type(x) is not Tensor or x.numel() < FEW:
            return super().forward(x)  # type: ignore[misc,no-any-return]
        refuse_recording(x)
        return self._followed(x)  # type: ignore[no-any-return]


def _bare(own: type[nn.Module]) -> nn.Module:
    return own.__new__(own)


def follow(module: nn.Module) -> tuple[type[nn.Module], dict[str, Link]] | None:
    """Return the class that a module becomes, and its chains by the names of the attributes that must hold them.

    None if there are no chains, or if it is not certain that the module always does the same.
    """
    children = set(map(type, module.children()))
    if not {nn.Conv2d, nn.BatchNorm2d} <= children or "forward" in module.__dict__:
        return None
    parts = tuple((name, type(part)) for name, part in module.named_modules())
    missing = tuple(name for name, value in module.__dict__.items() if value is None)
    if (parts, missing) not in _known:  # modules that are built alike are followed once
        _known[parts, missing] = _follow(module)
    found = _known[parts, missing]
    if found is not None and not all(suits(module._modules[link.conv]) for link in found[1].values()):  # type: ignore[arg-type]
        return None
    return found


_known: dict[object, tuple[type[nn.Module], dict[str, Link]] | None] = {}


def _follow(module: nn.Module) -> tuple[type[nn.Module], dict[str, Link]] | None:
    if not _always_the_same(module):
        return None
    try:
        graph = _Children().trace(module)
    except Exception:  # code that cannot be followed may fail in any way
        return None
    writes = _writes(type(module).forward)
    links = {f"_chain_{index}": link for index, link in enumerate(_join(module, graph, writes))}
    if not links or (writes and any(getattr(node.target, "__module__", "") == "_operator" for node in graph.nodes)):
        return None
    names: dict[str, Any] = {"torch": torch}
    exec(graph.python_code("self").src, names)
    own = type(module)
    return type(f"Chained{own.__name__}", (Chained, own), {"_followed": names["forward"], "_own": own}), links


class _Children(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _always_the_same(module: nn.Module) -> bool:
    """Whether the module's code reads submodules, None and torch only, so that it takes the same steps every time."""
    own = type(module)
    usual = own.__call__ is nn.Module.__call__ and own.__getattr__ is nn.Module.__getattr__
    if not usual or not isinstance(own.forward, FunctionType):
        return False
    code = own.forward.__code__
    if len(inspect.signature(own.forward).parameters) != 2 or own.forward.__defaults__ or code.co_freevars:
        return False
    if any(inspect.iscode(constant) for constant in code.co_consts):  # functions, comprehensions
        return False
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            known = _is_torch(own.forward.__globals__.get(step.argval))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            here = step.argval in module._modules or module.__dict__.get(step.argval, module) is None
            known = here or (step.argval in _PURE and not hasattr(module, step.argval))
        else:
            known = step.opcode not in dis.hasname  # it writes attributes, imports, calls super()
        if not known:
            return False
    return True


def _writes(forward: Callable[..., Any]) -> bool:
    """Whether code has operators such as ``+=``, of which torch.fx does not tell that they write to their left side."""
    steps = dis.get_instructions(forward)
    return any(s.opname.startswith("INPLACE_") or (s.opname == "BINARY_OP" and s.argrepr.endswith("=")) for s in steps)


def _is_torch(value: object) -> bool:
    """Whether this is torch, a part of it, or one of its functions that such code may call."""
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0] == "torch"
    return any(value is known for known in (*_RELUS, torch.add, torch.flatten) if callable(known))


def _join(module: nn.Module, graph: Graph, writes: bool) -> Iterator[Link]:
    """Yield the chains of a graph, and let it call the n-th as the attribute ``_chain_n``.

    ``writes``: sums may write to their left side, which must then be what BatchNorm returned.
    """
    count = 0
    for node in list(graph.nodes):
        norm = _layer(module, node, nn.BatchNorm2d)
        before: Any = node.args[0] if norm else None
        conv = _layer(module, before, nn.Conv2d)
        if conv is None or norm is None or _reader(before) is None:
            continue
        chain, added = [before, node], _added(_reader(node), node, writes)
        if added is not None:
            chain.append(_reader(node))
        relu = _relu(module, _reader(chain[-1]))
        if relu is not None:
            chain.append(_reader(chain[-1]))
        if not _undisturbed(module, chain):
            continue
        with graph.inserting_before(chain[-1]):
            given = before.args if added is None else (*before.args, added)
            chain[-1].replace_all_uses_with(graph.call_module(f"_chain_{count}", given))
        for done in reversed(chain):
            graph.erase_node(done)
        yield Link(conv, norm, added is not None, relu)
        count += 1


def _undisturbed(module: nn.Module, chain: list[Any]) -> bool:
    """Whether nothing before the last of a chain, for which the others then wait, may write to what the first reads."""
    node = chain[0]
    while node is not chain[-1]:
        node = node.next
        layer = module._modules.get(str(node.target)) if node.op == "call_module" else None
        if node not in chain and not (layer is not None and {type(part) for part in layer.modules()} <= _READ_ONLY):
            return False
    return True


_READ_ONLY = {nn.Identity, nn.Sequential, nn.Conv2d, nn.BatchNorm2d}
"""Layers that never write to what they are given."""


def _layer(module: nn.Module, node: Any, kind: type[nn.Module]) -> str | None:
    """Return the name of the submodule of just this kind that a node calls with one tensor."""
    if not (isinstance(node, Node) and node.op == "call_module" and len(node.args) == 1 and not node.kwargs):
        return None
    layer = module._modules.get(str(node.target))
    return str(node.target) if type(layer) is kind and isinstance(node.args[0], Node) else None


def _reader(node: Node) -> Node | None:
    """Return the node that alone reads what this one computes."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _added(total: Node | None, node: Node, writes: bool) -> Node | None:
    """Return what is added to a node, if ``total`` is such a sum, and one that does not write to what is added."""
    if total is None or total.op != "call_function" or total.target not in _SUMS or total.kwargs:
        return None
    one, other = total.args[:2]
    if one is not node:
        one, other = other, None if writes else one
    return other if one is node and isinstance(other, Node) and other is not node else None


def _relu(module: nn.Module, node: Node | None) -> str | Callable[[Tensor], Tensor] | None:
    """Return what a node calls, if it is a ReLU of one tensor."""
    if node is None or node.op == "call_module":
        return _layer(module, node, nn.ReLU)
    known = node.op in ("call_function", "call_method") and node.target in _RELUS and len(node.args) == 1
    # It may write where it reads: nothing else reads that.
    return functional.relu_ if known else None
