"""The tensor that takes a module's forward pass through the table of rules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ntksap._base import InputError
from ntksap.methods.moments.names import ALIASES, CREATES, FIRST, LIKE, METADATA, ORDERS, VALUES
from ntksap.methods.moments.table import MOVES, RULES, Rule, field_by_field
from ntksap.methods.moments.value import FIELDS, Known, Moments, certain

_trail: list[str] = []
"""The modules that are being called, outermost first, for errors to name."""

_checked: list[bool] = [False]


class MomentTensor(Tensor):
    """A tensor without values that carries `Moments` through the code of any module."""

    moments: Moments

    @staticmethod
    def __new__(cls, moments: Moments) -> "MomentTensor":
        """Take shape, dtype and device from the moments."""
        like = moments.like
        self: MomentTensor = Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        self.moments = moments
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what bypassed the table and reached torch's kernels: there are no values to compute with."""
        raise refusal(str(func), "it bypasses the table of rules, and there are no values to compute with")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a torch function with its rule."""
        args, kwargs = _by_place(args, kwargs or {})
        name = ORDERS.get(func) or ALIASES.get(func.__name__, func.__name__)
        if name == "__get__" and func.__self__.__name__ in RULES:  # x.T is an attribute with a rule, x.shape is not
            name = func.__self__.__name__
        if name in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        plain = name.rstrip("_") if not name.startswith("__") else name
        in_place = plain != name or func.__name__.startswith("__i") or name == "__setitem__"
        if in_place and not isinstance(args[0], MomentTensor):
            raise refusal(name, "it writes something that has only moments into an ordinary tensor")
        try:
            result = _wrap(_answer(plain, func, *_opened(args, kwargs)))
        except InputError:
            raise
        except Exception as error:  # a form of the call that the rule does not know
            raise refusal(name, f"its rule does not know this way of calling it ({error})") from error
        if _checked[0]:
            _check(name, result)
        if in_place and isinstance(result, MomentTensor):
            args[0].moments = result.moments
            return args[0]
        return result


def refusal(function: str, why: str) -> InputError:
    """Return the error that names a function, the module that called it, and what to do."""
    where = f" in {_trail[-1]}" if _trail else ""
    return InputError(
        f"the closed form cannot follow {function}{where}: {why}. Use ntk-sap, which samples and takes any module, or "
        "give the function or the module a rule (`ntksap.methods.moments.rule`)"
    )


def _answer(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of the function on moments."""
    if name in LIKE and not isinstance(args[0], Moments):
        return func(args[0], args[1].like, *args[2:], **kwargs)
    if name in CREATES:
        return _known(func(args[0].like, *args[1:], **kwargs))
    if _all_known(args) and _all_known(kwargs):
        values, options = tree_map_only(Known, lambda x: x.mean.clone(), (args, kwargs))
        result = func(*values, **options)
        return _known(values[0] if name == "__setitem__" else result)
    if name in VALUES:
        raise refusal(name, "it asks for the values of a tensor of which only moments are known")
    if name in RULES:
        return RULES[name](*args, **kwargs)
    if name in MOVES:
        return field_by_field(func, *args, **kwargs)
    raise refusal(name, "there is no rule for it")


def _known(result: Any) -> Any:
    """Return a nest of tensors of numbers as moments; other tensors (indices, conditions) as they are."""
    return tree_map_only(Tensor, lambda t: certain(t) if t.is_floating_point() else t, result)


def _by_place(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments with the first one positional, whatever its name, and without an ``out`` of None."""
    if kwargs.get("out", 0) is None:
        kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    if not args:
        for name in FIRST:
            if name in kwargs:
                return (kwargs[name],), {other: value for other, value in kwargs.items() if other != name}
    return args, kwargs


def _opened(args: Any, kwargs: Any) -> Any:
    """Return the arguments with moments instead of the tensors that carry them."""
    return _open(args), {name: _open(value) for name, value in kwargs.items()}


def _open(value: Any) -> Any:
    if isinstance(value, MomentTensor):
        return value.moments
    if isinstance(value, _LEAVES):  # most are, and torch's trees take more time than many rules
        return value
    if type(value) in (tuple, list):
        return type(value)(map(_open, value))
    return tree_map_only(MomentTensor, lambda x: x.moments, value)


def _all_known(value: Any) -> bool:
    """Return whether all `Moments` in a nest are `Known`."""
    if isinstance(value, Moments):
        return isinstance(value, Known)
    if isinstance(value, _LEAVES):
        return True
    if type(value) in (tuple, list, dict):
        return all(map(_all_known, value.values() if isinstance(value, dict) else value))
    return all(isinstance(leaf, Known) for leaf in tree_leaves(value) if isinstance(leaf, Moments))


_LEAVES = (Tensor, int, float, str, torch.Size, torch.dtype, torch.device, type(None))
"""What nests nothing."""


def _wrap(result: Any) -> Any:
    if isinstance(result, Moments):
        return MomentTensor(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_wrap(item) for item in result))
    if isinstance(result, tuple | list):
        return type(result)(_wrap(item) for item in result)
    return result


def _check(name: str, result: Any) -> None:
    for moments in (x.moments for x in tree_leaves(result) if isinstance(x, MomentTensor)):
        if any(not getattr(moments, field).isfinite().all() for field in FIELDS[:-1]):  # the mean may be a mask's
            raise refusal(name, "its moments are NaN or infinite")


@contextmanager
def checked() -> Iterator[None]:
    """Inside the block, raise at the first function whose moments are not finite."""
    _checked[0] = True
    try:
        yield
    finally:
        _checked[0] = False


@contextmanager
def module_rules(module: nn.Module) -> Iterator[None]:
    """Let the submodules whose type has a rule follow it inside the block, instead of their own forward pass.

    Errors inside the block name the module that was being called.
    """
    ruled = [(part, RULES[type(part)]) for part in module.modules() if type(part) in RULES]
    handles = []
    for path, part in module.named_modules():
        name = f"{path or 'the module'} ({type(part).__name__})"
        handles.append(part.register_forward_pre_hook(partial(_enter, name)))
        handles.append(part.register_forward_hook(_leave))
    try:
        for part, function in ruled:
            part.forward = _following(part, function)
        yield
    finally:
        _trail.clear()
        for handle in handles:
            handle.remove()
        for part, _ in ruled:
            part.__dict__.pop("forward", None)


def _enter(name: str, part: nn.Module, args: Any) -> None:
    _trail.append(name)


def _leave(part: nn.Module, args: Any, result: Any) -> None:
    _trail.pop()


def _following(part: nn.Module, function: Rule) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        opened_args, opened_kwargs = _opened(args, kwargs)
        return _wrap(function(part, *opened_args, **opened_kwargs))

    return forward
