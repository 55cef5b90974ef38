"""Torch-Pruning finds the same coupled channels in plain convolutional networks."""

import numpy as np
import pytest
import torch

from ntksap.compaction import channel_groups
from tests.compaction.networks import NETWORKS

other = pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
BY_NAME = {network.name: network for network in NETWORKS}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def _as_theirs(model, inputs):
    """Their groups: for each layer's outputs, (parameter, dimension, index) that goes with its first output."""
    graph = other.DependencyGraph().build_dependency(model, example_inputs=inputs)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for path, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            continue
        prune = other.prune_linear_out_channels if isinstance(layer, torch.nn.Linear) else other.prune_conv_out_channels
        members = set()
        for dependency, indices in graph.get_pruning_group(layer, prune, idxs=[0]):
            target = dependency.target.module
            outside = dependency.handler.__name__.endswith("out_channels")
            for own, parameter in target.named_parameters(recurse=False):
                turned = isinstance(target, torch.nn.ConvTranspose2d)
                dim = 0 if parameter.dim() == 1 else int(outside == turned)
                if outside or own == "weight":
                    members |= {(names[id(parameter)], dim, int(index)) for index in indices}
        found[f"{path}.weight"] = members
    return found


@pytest.mark.parametrize("name", ["lenet", "residual", "u-net", "inception", "resnet8", "vgg11-bn", "dense"])
def test_the_channels_that_go_with_the_first_output_of_a_layer_are_the_same(name):
    torch.manual_seed(0)
    model, inputs = BY_NAME[name].make().eval(), BY_NAME[name].inputs()
    groups = channel_groups(model, inputs)
    theirs = _as_theirs(model, inputs)
    parameters = {parameter for parameter, _ in model.named_parameters()}
    compared = 0
    for group in groups.groups:
        for start in group.members:
            if start.name not in theirs or start.dim != 0:
                continue
            unit = int(start.units[0])
            ours = {
                (member.name, member.dim, int(index))
                for member in group.members
                if member.name in parameters
                for index in np.flatnonzero(member.units == unit)
            }
            assert ours == theirs[start.name], start.name
            compared += 1
    assert compared >= 3
