"""The table of models, and how one is built."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from ntksap._base import global_seed, unknown
from ntksap.models.cifar_resnet import CifarResNet
from ntksap.models.imagenet_resnet import BasicBlock, Bottleneck, ImageNetResNet
from ntksap.models.small import conv4, lenet5, lenet_300_100
from ntksap.models.vgg import VGG
from ntksap.net import kaiming_normal


@dataclass(frozen=True)
class Model:
    """One line of the table.

    Args:
        name: what users write.
        factory: ``(width, in_channels, num_classes, image_size) -> module``.
        width: channels of the first layer; all other layers are in proportion.
        input_shape, num_classes: its usual data.
    """

    name: str
    factory: Callable[[int, int, int, int], nn.Module]
    width: int
    input_shape: tuple[int, int, int]
    num_classes: int

    def make(self, input_shape: Sequence[int], num_classes: int | None) -> nn.Module:
        """Return the module, with torch's own initial weights."""
        return self.factory(self.width, input_shape[0], num_classes or self.num_classes, input_shape[1])

    def at_width(self, width: int) -> "Model":
        """Return the same network with other numbers of channels: ``resnet20-w8`` is half as wide as ``resnet20``."""
        return replace(self, name=f"{_WIDTH.sub('', self.name)}-w{width}", width=width)


_WIDTH = re.compile(r"-w([1-9][0-9]{0,4})$")
_CIFAR, _IMAGENET, _MNIST = ((3, 32, 32), 10), ((3, 224, 224), 1000), ((1, 28, 28), 10)


def _cifar_resnet(depth: int, width: int, channels: int, classes: int, size: int) -> nn.Module:
    return CifarResNet(depth, width=width, in_channels=channels, num_classes=classes)


def _vgg(depth: int, width: int, channels: int, classes: int, size: int) -> nn.Module:
    return VGG(depth, width=width, in_channels=channels, num_classes=classes)


def _imagenet_resnet(
    block: type[BasicBlock | Bottleneck], layers: tuple[int, ...], width: int, channels: int, classes: int, size: int
) -> nn.Module:
    return ImageNetResNet(block, layers, width=width, in_channels=channels, num_classes=classes)


MODELS: dict[str, Model] = {
    model.name: model
    for model in [
        *(Model(f"resnet{d}", partial(_cifar_resnet, d), 16, *_CIFAR) for d in (8, 14, 20, 32, 44, 56, 110)),
        *(Model(f"wide-resnet{d}", partial(_cifar_resnet, d), 32, *_CIFAR) for d in (8, 14, 20, 32, 44, 56, 110)),
        *(Model(f"vgg{d}-bn", partial(_vgg, d), 64, *_CIFAR) for d in (11, 13, 16, 19)),
        Model("resnet18", partial(_imagenet_resnet, BasicBlock, (2, 2, 2, 2)), 64, *_IMAGENET),
        Model("resnet34", partial(_imagenet_resnet, BasicBlock, (3, 4, 6, 3)), 64, *_IMAGENET),
        Model("resnet50", partial(_imagenet_resnet, Bottleneck, (3, 4, 6, 3)), 64, *_IMAGENET),
        Model("lenet-300-100", lenet_300_100, 300, *_MNIST),
        Model("lenet-5", lenet5, 6, *_MNIST),
        Model("conv-4", conv4, 64, *_CIFAR),
    ]
}


def model_named(name: str) -> Model:
    """Return the model of that name, or of that name and width (``resnet20-w4``).

    An unknown name answers with the known ones.
    """
    if (found := _WIDTH.search(name)) and (base := name[: found.start()]) in MODELS:
        return MODELS[base].at_width(int(found[1]))
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def build(
    name: str, *, num_classes: int | None = None, input_shape: tuple[int, int, int] | None = None, seed: int = 0
) -> nn.Module:
    """Return a model from the table with Kaiming normal weights that depend on the seed alone.

    >>> sum(p.numel() for p in build("resnet20").parameters())
    272474
    """
    model = model_named(name)
    with global_seed(seed, "model"):
        module = model.make(input_shape or model.input_shape, num_classes)
        kaiming_normal(module)
    return module
