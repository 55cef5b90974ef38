"""Multiply-adds of one inference, dense and under masks, layer by layer, in the paper's convention.

Counted: each weight of a convolution, linear, attention or recurrent layer once per place (or time step) it is applied
at (times its density under a mask), those of an expert for each input that is sent to it; biases and the affine terms
of normalisation layers likewise, in full unless whole channels are removed; an ``nn.Identity`` (the shortcut of a
residual block) once per element, as the published code does. Not counted: activations, pooling, gates, the weightless
products inside attention.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from ntksap._base import global_seed
from ntksap.net import arguments, is_stack, is_transformers_conv1d, layer_weights, private_copy, unwrap
from ntksap.pruning import MakeInputs, Masks, Probe, without_followers


@dataclass(frozen=True)
class LayerCost:
    """Multiply-adds of one layer for one input."""

    name: str
    kind: str
    dense: int
    sparse: int


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of one inference: ``dense`` without masks, ``sparse`` under them.

    ``uncounted`` names the masked weights that no counted layer used: idle for this input, or in an unknown module.
    """

    layers: tuple[LayerCost, ...]
    uncounted: tuple[str, ...] = ()

    @property
    def dense(self) -> int:
        """The sum over layers without masks."""
        return sum(layer.dense for layer in self.layers)

    @property
    def sparse(self) -> int:
        """The sum over layers under the masks (the dense sum where there are none)."""
        return sum(layer.sparse for layer in self.layers)


def cost(
    model: nn.Module,
    masks: Mapping[str, Tensor] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
) -> Cost:
    """Count the multiply-adds of ``model`` for one input, dense and under ``masks``; the model is not changed.

    >>> cost(nn.Linear(3, 2), input_shape=(3,)).dense   # 6 weights and 2 biases
    8
    """
    if masks is not None:
        Masks(masks).check(model)
    module = private_copy(unwrap(model)).float()
    parameters = dict(module.named_parameters(remove_duplicate=False))
    mask_of = {id(parameters[name]): mask for name, mask in (masks or {}).items() if name in parameters}
    counted: dict[str, LayerCost] = {}
    seen: set[int] = set()

    def watch(name: str, part: nn.Module, rule: Rule) -> None:
        def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before = counted.get(name)  # a module that is used twice costs twice
            dense, sparse = (before.dense, before.sparse) if before else (0, 0)
            for term in rule(part, args, kwargs, output):
                entries = torch.ones(1, device="cpu") if term.weight is None else term.weight[term.rows]
                mask = mask_of.get(id(term.weight))
                seen.add(id(term.weight))
                dense += term.times * entries.numel()
                sparse += term.times * (entries.numel() if mask is None else int(mask[term.rows].sum()))
            counted[name] = LayerCost(name, type(part).__name__, dense, sparse)

        part.register_forward_hook(hook, with_kwargs=True)

    for name, part in module.named_modules():
        if rule := _rule(part):
            watch(name, part, rule)
    shape = tuple(input_shape) if input_shape is not None else None
    args, kwargs = arguments(Probe(input_shape=shape, make_inputs=inputs).noise(0, batch=1))
    with torch.no_grad(), global_seed("forward"):
        module(*args, **kwargs)
    uncounted = tuple(name for name in without_followers(masks or {}) if id(parameters[name]) not in seen)
    return Cost(tuple(counted.values()), uncounted)


class Term(NamedTuple):
    """``times`` applications of some rows of a parameter; or just ``times`` multiply-adds, which no mask reduces."""

    times: int
    weight: Tensor | None = None
    rows: slice = slice(None)


Rule: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], list[Term]]
"""(module, positional and keyword arguments, output) → terms."""


def _conv(module: _ConvNd, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> list[Term]:
    places = output.numel() // module.out_channels
    return [Term(places, module.weight), *_bias(module, output)]


def _conv_transpose(
    module: _ConvTransposeNd, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> list[Term]:
    return [Term(args[0].numel() // module.in_channels, module.weight), *_bias(module, output)]


def _linear(
    module: nn.Linear | nn.Bilinear, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> list[Term]:
    return [Term(output.numel() // module.out_features, module.weight), *_bias(module, output)]


def _transformers_conv1d(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> list[Term]:
    [weight] = layer_weights(module)
    return [Term(output.numel() // weight.shape[1], weight), *_bias(module, output)]


def _recurrent(
    module: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> list[Term]:
    given = args[0] if args else kwargs["input"]
    values = given.data if isinstance(given, PackedSequence) else given
    steps = values.numel() // module.input_size
    biases = sum(p.numel() for name, p in module.named_parameters() if name.startswith("bias"))
    return [*(Term(steps, weight) for weight in layer_weights(module)), Term(steps * biases)]


def _experts(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> list[Term]:
    """An expert is applied to the inputs that the module's indices send to it; without indices, to all."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    chosen = next((value for value in given if not value.is_floating_point()), None)
    weights = list(layer_weights(module))
    count = len(weights[0])
    if chosen is not None:
        times = torch.bincount(chosen.flatten(), minlength=count).tolist()[:count]
    else:
        inputs = given[0].numel() // given[0].shape[-1]
        times = [inputs // count if type(module).__name__ == "Llama4TextExperts" else inputs] * count  # it has copies
    biases = [own for own in module._parameters.values() if own is not None and own.dim() == 2 and len(own) == count]
    terms = [Term(times[i], weight, slice(i, i + 1)) for weight in weights for i in range(count)]
    return [*terms, *(Term(sum(times) * bias.shape[1]) for bias in biases)]


def _norm(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> list[Term]:
    return [*_each(getattr(module, "weight", None), output), *_bias(module, output)]


def _identity(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> list[Term]:
    return [Term(output.numel())] if isinstance(output, Tensor) else []


def _attention(
    module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Tensor, Any]
) -> list[Term]:
    query, key, value = (args[i] if i < len(args) else kwargs[n] for i, n in enumerate(("query", "key", "value")))
    width = module.embed_dim
    places = [query.numel() // width, key.numel() // module.kdim, value.numel() // module.vdim]
    if module._qkv_same_embed_dim:
        terms = [Term(p, module.in_proj_weight, slice(i * width, (i + 1) * width)) for i, p in enumerate(places)]
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        terms = [Term(p, w) for p, w in zip(places, weights, strict=True)]
    if module.in_proj_bias is not None:
        rows = [slice(i * width, (i + 1) * width) for i in range(3)]
        terms += [Term(p, module.in_proj_bias, own) for p, own in zip(places, rows, strict=True)]
    terms.append(Term(places[0], module.out_proj.weight))  # the output projection is not called as a module
    return terms + _bias(module.out_proj, output[0])


def _bias(module: nn.Module, output: Tensor) -> list[Term]:
    return _each(getattr(module, "bias", None), output)


def _each(parameter: Any, output: Tensor) -> list[Term]:
    """Return a multiply-add for each entry of an output, with a parameter that has one entry for many of them."""
    return [Term(output.numel() // max(1, parameter.numel()), parameter)] if isinstance(parameter, Tensor) else []


_RULES: dict[type[nn.Module] | tuple[type[nn.Module], ...], Rule] = {
    _ConvTransposeNd: _conv_transpose,
    _ConvNd: _conv,
    (nn.Linear, nn.Bilinear): _linear,
    nn.MultiheadAttention: _attention,
    (nn.RNNBase, nn.RNNCellBase): _recurrent,
    (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm): _norm,
    nn.Identity: _identity,
}


def _rule(module: nn.Module) -> Rule | None:
    for kind, rule in _RULES.items():
        if isinstance(module, kind):
            return rule
    if is_transformers_conv1d(module):
        return _transformers_conv1d
    if any(is_stack(module, weight.shape) for weight in layer_weights(module)):
        return _experts
    return _norm if type(module).__name__.endswith("Norm") else None  # the RMSNorms that many models bring along
