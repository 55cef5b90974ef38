"""Lets each layer of a module go the fastest way for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ntksap.net.kernels.attention import ChosenAttention, ChosenEncoderLayer
from ntksap.net.kernels.chain import Chain
from ntksap.net.kernels.chains import Link, follow
from ntksap.net.kernels.choice import Choices, Chooser
from ntksap.net.kernels.chosen import ChosenBatchNorm2d, ChosenConv2d, ChosenLinear, chosen_conv1d, few
from ntksap.net.kernels.convolution import PlainConv2d
from ntksap.net.kernels.geometry import geometry, thin
from ntksap.net.kernels.layers import become
from ntksap.net.kernels.settled import settling
from ntksap.net.kernels.sparse_conv import suits
from ntksap.net.layers import is_transformers_conv1d


@contextmanager
def chosen_layers(module: nn.Module, kept: Mapping[str, Tensor], choices: Choices) -> Iterator[None]:
    """Inside the block, each layer that has kernels here goes the way that is fastest, see `ntksap.net.kernels.choice`.

    What `native_layers` says about weights, gradients and second derivatives holds here too, also for linear layers and
    attention. Convolutions choose between torch and dense kernels where they have no mask; other layers that keep most
    of their weights have nothing to choose, and stay as they are.
    """
    masks = {id(parameter): kept[name] for name, parameter in module.named_parameters() if name in kept}
    classes: dict[nn.Module, type[nn.Module]] = {}
    attributes: dict[nn.Module, dict[str, object]] = {}
    for name, layer in module.named_modules():
        other = _chosen_class(layer)
        if other is None:
            continue
        own = [masks[id(p)] for p in _weights(layer) if id(p) in masks]
        if other in _DENSE or any(map(few, own)):
            classes[layer] = other
            if other is not PlainConv2d:
                chooser = Chooser(name or type(layer).__name__, _kind(layer), own, choices)
                attributes[layer] = {"chooser": chooser, "kept": own[0] if own else None}
                if isinstance(layer, nn.Conv2d):
                    attributes[layer]["thin"] = thin(layer.weight.shape)
    for name, part in module.named_modules():
        followed = None if part in classes else follow(part)
        if followed is not None:
            classes[part], links = followed
            attributes[part] = {key: _chain(name, part, link, masks, choices) for key, link in links.items()}
    parts = {part: type(part) for part in classes}
    with become(classes, attributes), settling(module, parts):
        yield


def _chain(name: str, part: nn.Module, link: Link, masks: Mapping[int, Tensor], choices: Choices) -> Chain:
    """Return a chain of this part of the module, of layers that become `ChosenConv2d` and `ChosenBatchNorm2d`."""
    conv, norm = part.get_submodule(link.conv), part.get_submodule(link.norm)
    relu = part.get_submodule(link.relu) if isinstance(link.relu, str) else link.relu
    kind = _kind(conv) + str(link).removeprefix(f"{link.conv} + {link.norm}")
    kept = [masks[id(weight)] for weight in _weights(conv) if id(weight) in masks]
    chooser = Chooser(f"{name}.{link}".removeprefix("."), f"{kind} after BatchNorm", kept, choices)
    return Chain(conv, norm, relu, chooser)  # type: ignore[arg-type]


_DENSE = (ChosenConv2d, PlainConv2d, ChosenBatchNorm2d)
"""Classes of layers that have something to choose, or to gain, without a mask."""


def _chosen_class(layer: nn.Module) -> type[nn.Module] | None:
    """Return what this layer becomes; None if it stays as it is, as does any layer that changes what its class does."""
    if type(layer) is nn.Conv2d:
        return ChosenConv2d if suits(layer) else PlainConv2d
    if type(layer) in (nn.Linear, NonDynamicallyQuantizableLinear):
        return ChosenLinear if "weight" in layer._parameters else None
    if is_transformers_conv1d(layer):
        return chosen_conv1d(type(layer))  # type: ignore[arg-type]
    return _ALIKE.get(type(layer))


_ALIKE: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm2d: ChosenBatchNorm2d,
    nn.MultiheadAttention: ChosenAttention,
    nn.TransformerEncoderLayer: ChosenEncoderLayer,
}


def _weights(layer: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the weights whose masks decide what is fastest for this layer."""
    if isinstance(layer, nn.TransformerEncoderLayer):
        yield from layer.parameters()
    else:
        for name in ("weight", "in_proj_weight"):
            if (weight := layer._parameters.get(name)) is not None:
                yield weight


def _kind(layer: nn.Module) -> str:
    """Return a word for the layer: layers with the same word are equally fast."""
    shapes = " ".join("×".join(map(str, weight.shape)) for weight in _weights(layer) if weight.dim() > 1)
    moves = f" {tuple(geometry(layer))}" if isinstance(layer, nn.Conv2d) else ""
    return f"{type(layer).__name__} {shapes}{moves}"
