"""`Net`: any ``nn.Module`` as a pure function of its weights; its layers, initialisers, norms and precision."""

from ntksap.net.initialisers import Initialiser, kaiming_normal
from ntksap.net.layers import Selectors, by_output, is_transformers_conv1d, layer_weights, unwrap
from ntksap.net.net import Inputs, Net, Norm, arguments, first_tensor, map_tensors, private_copy, summed_cross_entropy
from ntksap.net.precision import arithmetic, resolve

__all__ = [
    "Initialiser",
    "Inputs",
    "Net",
    "Norm",
    "Selectors",
    "arguments",
    "arithmetic",
    "by_output",
    "first_tensor",
    "is_transformers_conv1d",
    "kaiming_normal",
    "layer_weights",
    "map_tensors",
    "private_copy",
    "resolve",
    "summed_cross_entropy",
    "unwrap",
]
