"""Lets the layers of a module use the kernels of this package for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ntksap.native.norm import NativeBatchNorm2d
from ntksap.native.sparse_conv import SparseConv2d, few, suits


def sparse_layers(module: nn.Module, kept: Mapping[str, Tensor]) -> dict[nn.Conv2d, Tensor]:
    """Return the convolutions that are faster with the kept weights alone, and the masks of their weights.

    If these are most convolutions, images best have their channels first; at that torch's dense kernels are slow, so
    that all others that have a mask are among them.
    """
    masks = {id(parameter): kept[name] for name, parameter in module.named_parameters() if name in kept}
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    known = {layer: masks[id(layer.weight)] for layer in layers if id(layer.weight) in masks and suits(layer)}
    sparse = {layer: mask for layer, mask in known.items() if few(mask)}
    return known if 2 * len(sparse) > len(layers) else sparse


@contextmanager
def native_layers(module: nn.Module, sparse: Mapping[nn.Conv2d, Tensor]) -> Iterator[None]:
    """Inside the block, these convolutions touch only what their masks keep, and BatchNorm2d has a kernel of its own.

    The weights that the masks do not keep must be zero; they get zero gradients. Derivatives of second order do not
    exist inside. Numbers agree with torch's but for the last bits.
    """
    norms = [layer for layer in module.modules() if type(layer) is nn.BatchNorm2d]
    try:
        for layer, mask in sparse.items():
            layer.__class__, layer.kept = SparseConv2d, mask
        for norm in norms:
            norm.__class__ = NativeBatchNorm2d
        yield
    finally:
        for layer in sparse:
            layer.__class__ = nn.Conv2d
            del layer.kept
        for norm in norms:
            norm.__class__ = nn.BatchNorm2d
