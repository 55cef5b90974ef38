"""The table of models, and how one is built."""

from collections.abc import Callable
from dataclasses import dataclass
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
    """One line of the table: a factory ``(in_channels, num_classes, image_size) -> module`` and its usual data."""

    name: str
    factory: Callable[[int, int, int], nn.Module]
    input_shape: tuple[int, int, int]
    num_classes: int


_CIFAR, _IMAGENET, _MNIST = ((3, 32, 32), 10), ((3, 224, 224), 1000), ((1, 28, 28), 10)


def _cifar_resnet(depth: int, width: int, channels: int, classes: int, size: int) -> nn.Module:
    return CifarResNet(depth, width=width, in_channels=channels, num_classes=classes)


def _vgg(depth: int, channels: int, classes: int, size: int) -> nn.Module:
    return VGG(depth, in_channels=channels, num_classes=classes)


def _imagenet_resnet(
    block: type[BasicBlock | Bottleneck], layers: tuple[int, ...], channels: int, classes: int, size: int
) -> nn.Module:
    return ImageNetResNet(block, layers, in_channels=channels, num_classes=classes)


MODELS: dict[str, Model] = {
    model.name: model
    for model in [
        *(Model(f"resnet{d}", partial(_cifar_resnet, d, 16), *_CIFAR) for d in (8, 14, 20, 32, 44, 56, 110)),
        *(Model(f"wide-resnet{d}", partial(_cifar_resnet, d, 32), *_CIFAR) for d in (8, 14, 20, 32, 44, 56, 110)),
        *(Model(f"vgg{d}-bn", partial(_vgg, d), *_CIFAR) for d in (11, 13, 16, 19)),
        Model("resnet18", partial(_imagenet_resnet, BasicBlock, (2, 2, 2, 2)), *_IMAGENET),
        Model("resnet34", partial(_imagenet_resnet, BasicBlock, (3, 4, 6, 3)), *_IMAGENET),
        Model("resnet50", partial(_imagenet_resnet, Bottleneck, (3, 4, 6, 3)), *_IMAGENET),
        Model("lenet-300-100", lenet_300_100, *_MNIST),
        Model("lenet-5", lenet5, *_MNIST),
        Model("conv-4", conv4, *_CIFAR),
    ]
}


def model_named(name: str) -> Model:
    """Return the model of that name; an unknown name answers with the known ones."""
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
    channels, height, _ = input_shape or model.input_shape
    with global_seed(seed, "model"):
        module = model.factory(channels, num_classes or model.num_classes, height)
        kaiming_normal(module)
    return module
