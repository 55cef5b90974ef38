"""Lets the layers of a module use the kernels of this package for a while."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ntksap.net.kernels.batch_norm import NativeBatchNorm2d
from ntksap.net.kernels.convolution import PlainConv2d
from ntksap.net.kernels.geometry import thin
from ntksap.net.kernels.sparse_conv import SparseConv2d, few, is_narrow, suits


def sparse_layers(module: nn.Module, kept: Mapping[str, Tensor]) -> dict[nn.Conv2d, Tensor]:
    """Return the convolutions that are faster with the kept weights alone, and the masks of their weights.

    If these do most of the work (see `mostly_sparse`), images are best given with channels first; in that layout
    torch's dense kernels are slow, so all other convolutions that have a mask are included too.
    """
    masks = {id(parameter): kept[name] for name, parameter in module.named_parameters() if name in kept}
    layers = _convolutions(module)
    known = {layer: masks[id(layer.weight)] for layer in layers if id(layer.weight) in masks and suits(layer)}
    sparse = {layer: mask for layer, mask in known.items() if few(layer, mask)}
    return known if _size(sparse) > _size(layers) / 2 else sparse


def mostly_sparse(module: nn.Module, masks: Mapping[str, Tensor]) -> bool:
    """Whether the convolutions of `sparse_layers` have most of the work, so that channels are best first.

    A layer counts by 1 ÷ its outputs, which stands for the size of its images: where channels double, images usually
    halve in both directions.
    """
    return _size(sparse_layers(module, masks)) > _size(_convolutions(module)) / 2


def with_narrow(module: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks, and masks that keep everything for convolutions without one that have very few channels.

    Dense kernels calculate with vectors of channels, which these do not fill. Kernels for kept weights calculate with
    vectors of pixels and are faster there even if everything is kept.
    """
    narrow = {
        name: torch.ones_like(layer.weight, dtype=torch.bool, memory_format=torch.contiguous_format)
        for prefix, layer in module.named_modules()
        if isinstance(layer, nn.Conv2d) and is_narrow(layer) and suits(layer)
        if (name := f"{prefix}.weight" if prefix else "weight") not in masks
    }
    return {**narrow, **masks}


def _convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]


def _size(layers: Iterable[nn.Conv2d]) -> float:
    return sum(1 / layer.out_channels for layer in layers)


@contextmanager
def native_layers(module: nn.Module, sparse: Mapping[nn.Conv2d, Tensor]) -> Iterator[None]:
    """Inside the block, these convolutions touch only what their masks keep; others, and BatchNorm2d, are faster too.

    The weights that the masks do not keep must be zero; their gradients may come out as zero. Sparse convolutions and
    BatchNorm2d have no second derivatives inside; other convolutions have cheap ones of every order, and torch's own
    under the transformations of torch.func and in forward mode. Numbers agree with torch's up to the last bits.
    """
    classes: dict[nn.Module, type[nn.Module]] = {}
    for layer in module.modules():
        if type(layer) is nn.BatchNorm2d:
            classes[layer] = NativeBatchNorm2d
        elif type(layer) is nn.Conv2d:
            classes[layer] = SparseConv2d if layer in sparse else PlainConv2d
    with become(classes, {layer: {"kept": mask} for layer, mask in sparse.items()}):
        yield


def bears_channels_last(module: nn.Module) -> bool:
    """Whether torch can be trusted with this module's images on a CPU when their channels come last.

    It can with `native_layers` and `safe_layers`, unless thin weights (see `ntksap.net.kernels.geometry`) belong to
    something other than a plain convolution, whose code is unknown here.
    """
    for part in module.modules():
        known = isinstance(part, nn.Conv2d) and part.stride == (1, 1)
        known = known or (type(part) is nn.Conv2d and part.padding_mode == "zeros")
        if not known and any(p is not None and thin(p.shape) for p in part._parameters.values()):
            return False
    return True


@contextmanager
def safe_layers(module: nn.Module) -> Iterator[None]:
    """Inside the block, thin convolutions avoid the way on which torch is not safe; everything else is torch's own."""
    thin_layers = [part for part in module.modules() if type(part) is nn.Conv2d and thin(part.weight.shape)]
    with become(dict.fromkeys(thin_layers, PlainConv2d)):
        yield


@contextmanager
def become(
    classes: Mapping[nn.Module, type[nn.Module]], attributes: Mapping[nn.Module, Mapping[str, object]] | None = None
) -> Iterator[None]:
    """Inside the block, each of these modules has another class, and additional attributes."""
    before, given = {module: type(module) for module in classes}, attributes or {}
    try:
        for module, other in classes.items():
            module.__class__ = other
            for name, value in given.get(module, {}).items():
                setattr(module, name, value)
        yield
    finally:
        for module, own in before.items():
            module.__class__ = own
            for name in given.get(module, {}):
                module.__dict__.pop(name, None)
