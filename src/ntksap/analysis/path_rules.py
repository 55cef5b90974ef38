"""Numbers of paths as tensors, and what torch's functions make of them."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only

from ntksap._base import InputError
from ntksap.methods.moments import MOVES
from ntksap.net import BOUNDS, IDENTITIES, SOFTMAXES

_BLOCKED = -1e4
"""A value below this that is added to a logit marks a mask."""


class Counts(Tensor):
    """Numbers of paths, value · e^exponent: the value is at most 1, however many paths there are."""

    exponent: float
    path: bool
    """Whether paths from the input arrive here; not at a weight, through which they only lead."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a torch function with its rule."""
        own, kwargs = func.__name__, kwargs or {}
        name = own.strip("_") if own.startswith("__") else own.rstrip("_")
        name = _ALIASES.get(name, name)
        with torch._C.DisableTorchFunctionSubclass():
            if name in _ABOUT:
                return func(*args, **kwargs)
            if "input" in kwargs and not args:
                args, kwargs = (kwargs["input"],), {key: value for key, value in kwargs.items() if key != "input"}
            rule = _RULES.get(name)
            if rule is None and name not in _MOVES and own != "__getitem__":
                raise InputError(f"paths cannot be followed through {own}")
            result = _moved(func, args, kwargs) if rule is None else rule(*args, **kwargs)
            in_place = own.startswith("__i") or (own.endswith("_") and not own.startswith("__"))
            if in_place and isinstance(result, Counts) and result is not args[0]:
                args[0].data = result.as_subclass(Tensor)  # views of what was there before keep their numbers
                args[0].exponent = result.exponent
                return args[0]
            return result


def counts(value: Tensor, exponent: float = 0.0, *, path: bool = True) -> Counts:
    """Return value · e^exponent as a tensor of counts, with 1 as its largest value."""
    with torch._C.DisableTorchFunctionSubclass():
        value = value.as_subclass(Tensor)
        largest = float(value.max()) if value.numel() else 0.0
        made: Counts = (value / largest if largest > 0 else value.clone()).as_subclass(Counts)
        made.exponent, made.path = exponent + math.log(largest) if largest > 0 else -math.inf, path
    return made


def _moved(func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a function that is linear in its one argument."""
    (one,) = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Counts))

    def again(part: Tensor) -> Tensor:
        return counts(part, one.exponent, path=one.path) if part.is_floating_point() else part

    return tree_map_only(Tensor, again, func(*args, **kwargs))


def _same(x: Counts, *args: Any, **kwargs: Any) -> Counts:
    return x


def _product(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    """Return the rule of a function that is linear in each of its arguments."""

    def rule(*args: Any, **kwargs: Any) -> Counts:
        factors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Counts)]
        return counts(
            func(*args, **kwargs), sum(one.exponent for one in factors), path=any(one.path for one in factors)
        )

    return rule


def _layer(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    """Return the rule of a layer: without its bias."""

    def rule(x: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Counts:
        return _product(func)(x, weight, None, *args, **kwargs)

    return rule


def _mul(x: Any, y: Any) -> Counts:
    """Multiply; a constant factor changes no number of paths, and one of 0 removes them."""
    if not isinstance(x, Counts):
        x, y = y, x
    if not isinstance(y, Tensor) or y.dim() == 0:
        return x  # type: ignore[no-any-return]
    return _product(torch.mul)(x, y if isinstance(y, Counts) else (y != 0).to(x.dtype))


def _div(x: Any, y: Any, **kwargs: Any) -> Counts:
    if isinstance(y, Counts):
        raise InputError("paths cannot be followed through a division by something that depends on the input")
    return x  # type: ignore[no-any-return]


def _add(x: Any, y: Any, **kwargs: Any) -> Counts:
    if not isinstance(x, Counts):
        x, y = y, x
    if not isinstance(y, Tensor):
        return x  # type: ignore[no-any-return]
    if isinstance(y, Counts):
        return _together(torch.add, [x, y])
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return counts(x.expand(shape).masked_fill(y <= _BLOCKED, 0), x.exponent, path=x.path)


def _together(func: Callable[..., Tensor], parts: Sequence[Tensor], joined: bool = False, **kwargs: Any) -> Counts:
    """Bring tensors to one exponent and apply ``func`` to them; tensors not from the input bring no path."""
    known = [part for part in parts if isinstance(part, Counts)]
    live = [part for part in known if part.path] or known
    top = max(part.exponent for part in live)
    top = 0.0 if top == -math.inf else top
    values = [
        part.as_subclass(Tensor) * math.exp(part.exponent - top)
        if isinstance(part, Counts) and any(part is one for one in live)
        else torch.zeros_like(part.as_subclass(Tensor), dtype=live[0].dtype)
        for part in parts
    ]
    result = func(values, **kwargs) if joined else func(*values, **kwargs)
    return counts(result, top, path=any(part.path for part in live))


def _join(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    def rule(tensors: Sequence[Tensor], dim: int | None = None, **kwargs: Any) -> Counts:
        return _together(func, tensors, True, **({} if dim is None else {"dim": dim}))

    return rule


def _sum(x: Counts, *args: Any, **kwargs: Any) -> Counts:
    return counts(torch.sum(x, *args, **kwargs), x.exponent, path=x.path)


def _fill(x: Counts, mask: Tensor, value: Any) -> Counts:
    return counts(x.masked_fill(mask, 0), x.exponent, path=x.path)


def _pad(x: Counts, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Counts:
    return counts(functional.pad(x, pad, mode), x.exponent, path=x.path)


def _pool(dims: int) -> Callable[..., Counts]:
    """Return the rule of average pooling: every entry of a window leads to its output."""

    def rule(
        x: Counts, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, *args: Any, **_: Any
    ) -> Counts:
        def sizes(size: Any, beside: int) -> Any:
            return (beside, *((size,) if isinstance(size, int) else size)) if dims == 1 else size

        flat = x.unsqueeze(-2) if dims == 1 else x
        pool: Any = functional.avg_pool3d if dims == 3 else functional.avg_pool2d
        steps = sizes(stride, 1) if stride is not None and stride != [] else None
        found = pool(flat, sizes(kernel_size, 1), steps, sizes(padding, 0), ceil_mode, True, 1)
        return counts(found.squeeze(-2) if dims == 1 else found, x.exponent, path=x.path)

    return rule


def _max_pool(dims: int) -> Callable[..., Counts]:
    def rule(
        x: Counts,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Counts:
        if return_indices or any(step != 1 for step in tree_leaves(dilation)):
            raise InputError("paths cannot be followed through max-pooling with dilation or indices")
        return _pool(dims)(x, kernel_size, stride, padding, ceil_mode)

    return rule


def _adaptive(func: Callable[..., Tensor]) -> Callable[..., Counts]:
    """Return the rule of pooling to a given size: means, times the number of entries in each window."""

    def rule(x: Counts, output_size: Any, *args: Any, **kwargs: Any) -> Counts:
        found = func(x, output_size)
        for axis in range(-_SPATIAL[func], 0):
            size, windows = x.shape[axis], found.shape[axis]
            lengths = [-(-(i + 1) * size // windows) - i * size // windows for i in range(windows)]
            found = found * torch.tensor(lengths, dtype=found.dtype, device=found.device).view(-1, *[1] * (-axis - 1))
        return counts(found, x.exponent, path=x.path)

    return rule


_SPATIAL: dict[Any, int] = {
    functional.adaptive_avg_pool1d: 1, functional.adaptive_avg_pool2d: 2, functional.adaptive_avg_pool3d: 3,
}  # fmt: skip


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Counts:
    """(…, L, E), (…, S, E), (…, S, V) → (…, L, V): a query, a key and a value, where the mask allows it."""
    if enable_gqa:
        key, value = (
            _moved(torch.repeat_interleave, (x, query.shape[-3] // x.shape[-3]), {"dim": -3}) for x in (key, value)
        )
    logits = _product(torch.matmul)(query, _moved(torch.transpose, (key, -2, -1), {}))
    meet = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
    meet = meet.tril() if is_causal else meet
    if attn_mask is not None:
        meet = meet & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > _BLOCKED)
    return _product(torch.matmul)(_mul(logits, meet), value)


def _multi_head(*args: Any, **kwargs: Any) -> tuple[Counts, None]:
    """(L, N, E) → (L, N, E), as ``nn.MultiheadAttention`` calls it."""
    given = _MULTI_HEAD.bind(*args, **kwargs)
    given.apply_defaults()
    of = given.arguments
    if of["bias_k"] is not None:
        raise InputError("paths cannot be followed through nn.MultiheadAttention with add_bias_kv")
    heads, batched = of["num_heads"], of["query"].dim() == 3
    if of["use_separate_proj_weight"]:
        weights = [of[f"{name}_proj_weight"] for name in "qkv"]
    else:
        packed = of["in_proj_weight"]
        weights = [counts(one, packed.exponent, path=False) for one in packed.chunk(3)]

    def split(x: Counts, weight: Counts) -> Counts:  # (L, N, E) → (N, heads, L, E ÷ heads)
        made = _layer(functional.linear)(x, weight)
        return _moved(  # type: ignore[no-any-return]
            lambda t: (t if batched else t.unsqueeze(1)).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3), (made,), {}
        )

    query, key, value = (split(of[name], w) for name, w in zip(("query", "key", "value"), weights, strict=True))
    blocked = torch.zeros((), dtype=torch.bool, device=query.device)
    if (mask := of["attn_mask"]) is not None:  # (L, S) or (N · heads, L, S)
        blocked = blocked | _blocked(mask if mask.dim() == 2 else mask.unflatten(0, (-1, heads)))
    if (mask := of["key_padding_mask"]) is not None:  # (N, S) or (S)
        blocked = blocked | _blocked(mask).view(-1, 1, 1, mask.shape[-1])
    attended = _attention(query, key, value, ~blocked, is_causal=of["is_causal"] and of["attn_mask"] is None)
    joined = _moved(lambda t: t.permute(2, 0, 1, 3).flatten(2), (attended,), {})
    result = _layer(functional.linear)(joined, of["out_proj_weight"])
    return (result if batched else _moved(torch.squeeze, (result, 1), {})), None


_MULTI_HEAD = inspect.signature(functional.multi_head_attention_forward)


def _blocked(mask: Tensor) -> Tensor:
    """Return where a mask of ``nn.MultiheadAttention`` lets nothing through: True, or a very negative summand."""
    return mask if mask.dtype == torch.bool else mask <= _BLOCKED


_ALIASES = {
    "iadd": "add", "radd": "add", "sub": "add", "isub": "add", "rsub": "add", "subtract": "add", "imul": "mul",
    "rmul": "mul", "multiply": "mul", "truediv": "div", "itruediv": "div", "divide": "div", "true_divide": "div",
    "mm": "matmul", "bmm": "matmul", "maximum": "add", "minimum": "add", "concat": "cat", "concatenate": "cat",
    "_threshold": "threshold",
}  # fmt: skip
_ABOUT = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "len", "is_contiguous", "is_floating_point",
    "is_complex", "get_device", "requires_grad", "hash", "element_size", "is_same_size", "is_signed", "set",
}  # fmt: skip
"""Answered from shape, dtype and device."""
_MOVES = {*MOVES, "get", "cumsum", "interpolate", "upsample"}
_SAME = [
    *IDENTITIES, *BOUNDS, *SOFTMAXES, "abs", "neg", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout", "to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda",
    "contiguous", "positive", "data",
]  # fmt: skip
"""The identity, as far as paths are concerned."""
_LAYERS = ["linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_SAME, _same),
    **{name: _layer(getattr(functional, name)) for name in _LAYERS},
    "bilinear": lambda x, y, weight, bias=None: _product(functional.bilinear)(x, y, weight),
    "matmul": _product(torch.matmul),
    "addmm": lambda bias, x, y, **kwargs: _product(torch.matmul)(x, y),
    "einsum": _product(torch.einsum),
    "mul": _mul,
    "div": _div,
    "add": _add,
    "cat": _join(torch.cat),
    "stack": _join(torch.stack),
    "where": lambda condition, x, y: _together(lambda a, b: torch.where(condition, a, b), [x, y]),
    "masked_fill": _fill,
    "pad": _pad,
    **dict.fromkeys(("sum", "mean", "amax"), _sum),
    **{f"avg_pool{n}d": _pool(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _max_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": _adaptive(func) for func, n in _SPATIAL.items() for kind in ("avg", "max")},
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
    "embedding": lambda ids, weight, *args, **kwargs: counts(functional.embedding(ids, weight), weight.exponent),
}
