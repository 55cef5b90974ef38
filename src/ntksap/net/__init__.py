"""`Net`: any ``nn.Module`` as a pure function of its weights; its layers, initialisers, norms and precision."""

from ntksap.net.identities import BOUNDS, IDENTITIES, SOFTMAXES, own_identities, without_upper_bound
from ntksap.net.initialisers import Initialiser, kaiming_normal
from ntksap.net.layers import by_output, is_stack, is_transformers_conv1d, layer_weights, unwrap
from ntksap.net.logits import has_attention, logit_layers, nodes_after_layers
from ntksap.net.net import (
    Inputs,
    Net,
    Norm,
    arguments,
    copy_of,
    first_tensor,
    map_tensors,
    private_copy,
    summed_cross_entropy,
)
from ntksap.net.precision import arithmetic, resolve
from ntksap.net.prunable import Selectors, left_out, prunable_names, warn_of
from ntksap.net.shell import computes_weights, shell
from ntksap.net.stacks import apart, join, parts_of, split
from ntksap.net.weight_views import WeightView, weight_views

__all__ = [
    "BOUNDS",
    "IDENTITIES",
    "SOFTMAXES",
    "Initialiser",
    "Inputs",
    "Net",
    "Norm",
    "Selectors",
    "WeightView",
    "apart",
    "arguments",
    "arithmetic",
    "by_output",
    "computes_weights",
    "copy_of",
    "first_tensor",
    "has_attention",
    "is_stack",
    "is_transformers_conv1d",
    "join",
    "kaiming_normal",
    "layer_weights",
    "left_out",
    "logit_layers",
    "map_tensors",
    "nodes_after_layers",
    "own_identities",
    "parts_of",
    "private_copy",
    "prunable_names",
    "resolve",
    "shell",
    "split",
    "summed_cross_entropy",
    "unwrap",
    "warn_of",
    "weight_views",
    "without_upper_bound",
]
