"""Which parameters of a module may be pruned, and which are left out although they are as large."""

import difflib
import fnmatch
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from torch import nn

from ntksap._base import InputError, NotPrunableWarning
from ntksap.net.layers import layer_weights, unwrap

Selector: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""A name pattern (``"layer1.*"``), a module type, or ``(parameter name, its module) -> bool``."""

Selectors: TypeAlias = Selector | Sequence[Selector] | None

DEFAULT = "default"
"""In ``include``, stands for what is prunable without it."""

_NAMED = 5
_SHARE = 0.02
"""Tensors that are shaped like a matrix but are not a layer's weight are named if together they reach this share."""


def prunable_names(module: nn.Module, include: Selectors = None, exclude: Selectors = None) -> tuple[str, ...]:
    """Return the names of the prunable parameters of ``module``, in the module's own order, tied ones once.

    By default: the weights of convolution, linear, attention and recurrent layers and stacked experts that are
    trainable and not tied to an embedding. ``include`` replaces that default with every tensor of two or more
    dimensions that it selects (a tensor of one dimension only by its full name); with ``"default"`` among its selectors
    it adds to it. ``exclude`` then removes some. Raises InputError if nothing is left, or if a name pattern matches no
    parameter.

    >>> block = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    >>> prunable_names(block, include=["default", "0.*"], exclude="2.*")
    ('0.weight', '1.weight')
    """
    tensors = _tensors(module)
    for option, selectors in (("include", include), ("exclude", exclude)):
        _check_patterns(option, selectors, module, tensors)
    names = tuple(tensor.name for tensor in tensors if _included(include, tensor) and not _selects(exclude, tensor))
    if not names:
        raise InputError(
            "nothing prunable: the module has no trainable convolution, linear, attention or recurrent weight that "
            "include and exclude leave. Pass include= (a name pattern, a module type or a callable) to choose tensors "
            "yourself; frozen parameters count only when they are included."
        )
    return names


def left_out(module: nn.Module, include: Selectors = None, exclude: Selectors = None) -> dict[str, float]:
    """Return tensors shaped like a weight matrix that are neither prunable nor excluded: {name: share of parameters}.

    That is, trainable tensors that are neither embeddings nor biases and larger than 1 in two dimensions. With an
    ``include`` without ``"default"`` the user has chosen, so nothing is left out.
    """
    if include is not None and DEFAULT not in _listed(include):
        return {}
    tensors = _tensors(unwrap(module))
    total = sum(tensor.parameter.numel() for tensor in tensors)
    return {
        tensor.name: tensor.parameter.numel() / total
        for tensor in tensors
        if tensor.parameter.requires_grad
        and not tensor.embedded
        and "bias" not in tensor.name.rpartition(".")[2]
        and sum(size > 1 for size in tensor.parameter.shape) > 1
        and not _included(include, tensor)
        and not _selects(exclude, tensor)
    }


def warn_of(shares: Mapping[str, float]) -> None:
    """Warn of what `left_out` found, if it is more than small tables."""
    if math.fsum(shares.values()) < _SHARE:
        return
    largest = sorted(shares, key=lambda name: -shares[name])
    named = ", ".join(f"{name} ({shares[name]:.1%})" for name in largest[:_NAMED])
    more = f" and {len(largest) - _NAMED} more" if len(largest) > _NAMED else ""
    warnings.warn(
        f"{math.fsum(shares.values()):.1%} of the parameters are in tensors shaped like weight matrices that are not "
        f"prunable by default, so they stay dense and the sparsity does not count them: {named}{more}. "
        f"include=['default', {largest[0]!r}] prunes them too; exclude= with their names says that they are to stay",
        NotPrunableWarning,
        stacklevel=3,
    )


class _Named:
    """A parameter with all its names, the modules that own it, and what it is to them."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.names: list[str] = []
        self.owners: list[nn.Module] = []
        self.usual = False
        self.embedded = False

    @property
    def name(self) -> str:
        return self.names[0]


def _tensors(module: nn.Module) -> list[_Named]:
    """The parameters of ``module`` in its own order, tied ones once."""
    found: dict[int, _Named] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), _Named(parameter)).names.append(name)
    for owner in module.modules():
        for own in owner._parameters.values():
            if own is not None:
                found[id(own)].owners.append(owner)
                found[id(own)].embedded |= isinstance(owner, nn.Embedding | nn.EmbeddingBag)
        for weight in layer_weights(owner):
            found[id(weight)].usual = weight.requires_grad
    return list(found.values())


def _included(include: Selectors, tensor: _Named) -> bool:
    usual = tensor.usual and not tensor.embedded
    if include is None:
        return usual
    listed = _listed(include)
    if usual and DEFAULT in listed:
        return True
    return _selects(include, tensor) and (tensor.parameter.dim() > 1 or any(name in listed for name in tensor.names))


def _listed(selectors: Selectors) -> Sequence[Selector]:
    if selectors is None:
        return ()
    return selectors if isinstance(selectors, Sequence) and not isinstance(selectors, str) else (selectors,)


def _selects(selectors: Selectors, tensor: _Named) -> bool:
    for selector in _listed(selectors):
        if isinstance(selector, str):
            if any(fnmatch.fnmatchcase(name, selector) for name in tensor.names):
                return True
        elif isinstance(selector, type):
            if any(isinstance(owner, selector) for owner in tensor.owners):
                return True
        elif any(selector(tensor.name, owner) for owner in tensor.owners):
            return True
    return False


def _check_patterns(option: str, selectors: Selectors, module: nn.Module, tensors: Sequence[_Named]) -> None:
    names = [name for tensor in tensors for name in tensor.names]
    for pattern in _listed(selectors):
        if not isinstance(pattern, str) or (option == "include" and pattern == DEFAULT):
            continue
        if not fnmatch.filter(names, pattern):
            near = difflib.get_close_matches(pattern, [*names, *_patterns(module)], n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else f" Parameters are named like {names[0]!r}."
            raise InputError(f"{option}={pattern!r} matches no parameter of the module.{hint}")


def _patterns(module: nn.Module) -> Iterator[str]:
    """What a user may have meant: all parameters below a module, or below modules of one name anywhere."""
    for path, _ in module.named_modules():
        if path:
            yield f"{path}.*"
            yield f"*.{path.rpartition('.')[2]}.*"
