"""The table of rules, and the tensor that takes a module's forward pass through it."""

import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ntksap._base import InputError
from ntksap.methods.moments.value import FIELDS, Moments, Weight, certain

Rule: TypeAlias = Callable[..., Any]
"""Takes what the torch function (or the module, itself first) takes, with `Moments` in place of tensors of numbers that
depend on weights or inputs; returns `Moments`, or a nest of them."""

Decorated = TypeVar("Decorated", bound=Rule)

RULES: dict[str | type[nn.Module], Rule] = {}
"""A torch function's name without a closing underscore (``"relu"`` is F.relu, torch.relu, Tensor.relu and relu_), or a
type of module whose inside cannot be followed."""


class NoRuleWarning(UserWarning):
    """A function without a rule was applied to moments as if it only moved entries."""


def rule(*keys: str | type[nn.Module], replace: bool = False) -> Callable[[Decorated], Decorated]:
    """Register a rule for torch functions, by name, or for types of modules.

    >>> @rule("erfinv")
    ... def erfinv(x):
    ...     return elementwise(torch.erfinv, x)
    """

    def register(function: Decorated) -> Decorated:
        for key in keys:
            if key in RULES and not replace:
                raise InputError(f"there is a rule for {key!r} already; pass replace=True to put another in its place")
            RULES[key] = function
        return function

    return register


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
        """Refuse what reached torch's kernels past the table: there are no values to compute with."""
        raise InputError(
            f"{func} cannot work on moments: give the module that calls it a rule (`ntksap.methods.moments.rule`)"
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a torch function by its rule."""
        kwargs = kwargs or {}
        name = _ALIASES.get(func.__name__, func.__name__)
        if name == "__get__" and func.__self__.__name__ in RULES:  # x.T is an attribute with a rule, x.shape is not
            name = func.__self__.__name__
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _VALUES:
            raise InputError(
                f"the module's forward pass depends on the values of a tensor ({name}), of which only moments are known"
            )
        plain = name.rstrip("_") if not name.startswith("__") else name
        opened_args, opened_kwargs = _opened(args, kwargs)
        result = _wrap(_rule_for(plain, func)(*opened_args, **opened_kwargs))
        if (plain != name or func.__name__.startswith("__i")) and isinstance(result, MomentTensor):
            args[0].moments = result.moments  # in place
            return args[0]
        return result


def _opened(args: Any, kwargs: Any) -> Any:
    """Return the arguments with moments in place of the tensors that carry them."""
    return tuple(_open(value) for value in args), {name: _open(value) for name, value in kwargs.items()}


def _open(value: Any) -> Any:
    if isinstance(value, MomentTensor):
        return value.moments
    if type(value) is tuple or type(value) is list:  # by far the most; a tree of any other kind takes its time
        return type(value)(_open(item) for item in value)
    if isinstance(value, tuple | list | dict):
        return tree_map_only(MomentTensor, lambda x: x.moments, value)
    return value


def moments_of(value: Any) -> Moments:
    """Return moments as they are, and those of a number or a tensor of known values."""
    if isinstance(value, Moments):
        return value
    return certain(value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64))


def _wrap(result: Any) -> Any:
    if isinstance(result, Moments):
        return MomentTensor(result)
    if isinstance(result, tuple | list):
        return type(result)(_wrap(item) for item in result)
    return result


def _rule_for(name: str, func: Any) -> Rule:
    if name in RULES:
        return RULES[name]
    warnings.warn(
        f"no rule for the moments of {name}: each field goes through it as it is. Register one with "
        f"ntksap.methods.moments.rule({name!r})",
        NoRuleWarning,
        stacklevel=3,
    )
    return partial(field_by_field, func)


def field_by_field(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply ``func`` to each field of all its `Moments` at once; results that are lists become lists of `Moments`."""
    if args and isinstance(args[0], Weight):  # still a weight when it is transposed or cut
        weight, *rest = args
        moved = func(weight.mask, *rest, **kwargs)
        parts = [weight.moved(part) for part in (moved if isinstance(moved, tuple | list) else [moved])]
        return parts[0] if isinstance(moved, Tensor) else parts
    if (
        args
        and isinstance(args[0], Moments)
        and all(isinstance(value, _PLAIN) for value in (*args[1:], *kwargs.values()))
    ):
        results = [func(getattr(args[0], name), *args[1:], **kwargs) for name in FIELDS]
    else:
        results = []
        for name in FIELDS:
            one_args, one_kwargs = tree_map_only(Moments, operator.attrgetter(name), (args, kwargs))
            results.append(func(*one_args, **one_kwargs))
    if isinstance(results[0], Tensor):
        return Moments(*results)
    if isinstance(results[0], tuple | list):
        return [Moments(*parts) for parts in zip(*results, strict=True)]
    return results[0]


_PLAIN = (int, float, str, torch.Size, torch.dtype, type(None))
"""What holds no moments: most functions have nothing else beside their first argument, and then no tree is searched."""


@contextmanager
def module_rules(module: nn.Module) -> Iterator[None]:
    """Let the submodules whose type has a rule follow it inside the block, instead of their own forward pass."""
    ruled = [(part, RULES[type(part)]) for part in module.modules() if type(part) in RULES]

    def follow(part: nn.Module, function: Rule) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            opened_args, opened_kwargs = _opened(args, kwargs)
            return _wrap(function(part, *opened_args, **opened_kwargs))

        return forward

    try:
        for part, function in ruled:
            part.forward = follow(part, function)
        yield
    finally:
        for part, _ in ruled:
            part.__dict__.pop("forward", None)


_METADATA = {
    "__get__", "__set__", "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_contiguous",
    "is_floating_point", "is_complex", "__len__", "get_device", "_is_view", "requires_grad_", "is_shared", "__repr__",
    "storage_offset", "is_signed", "is_pinned", "is_same_size", "data_ptr", "__hash__", "register_hook",
}  # fmt: skip
_VALUES = {
    "item",
    "tolist",
    "numpy",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "nonzero",
    "equal",
    "allclose",
    "gt",
    "lt",
    "ge",
    "le",
    "eq",
    "ne",
    "__gt__",
    "__lt__",
    "__ge__",
    "__le__",
    "__eq__",
    "__ne__",
    "isnan",
    "any",
    "all",
}
_ALIASES = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__isub__": "sub", "__rsub__": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul", "__truediv__": "div",
    "__itruediv__": "div", "true_divide": "div", "divide": "div", "__rtruediv__": "rdiv", "__matmul__": "matmul",
    "__rmatmul__": "rmatmul", "__pow__": "pow", "__neg__": "neg", "subtract": "sub", "negative": "neg",
}  # fmt: skip
