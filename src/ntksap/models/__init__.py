"""The paper's models and small ones, in plain torch layers; a table of names."""

from ntksap.models.built import Built
from ntksap.models.cifar_resnet import CifarResNet
from ntksap.models.imagenet_resnet import BasicBlock, Bottleneck, ImageNetResNet
from ntksap.models.own import model_for, outline
from ntksap.models.table import MODELS, Model, build, model_named
from ntksap.models.vgg import VGG

__all__ = [
    "MODELS",
    "VGG",
    "BasicBlock",
    "Bottleneck",
    "Built",
    "CifarResNet",
    "ImageNetResNet",
    "Model",
    "build",
    "model_for",
    "model_named",
    "outline",
]
