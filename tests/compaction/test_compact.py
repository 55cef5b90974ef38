"""A compact module computes what the masked one computes: float64, outputs and gradients, any network, any masks."""

import pytest
import torch

from ntksap.compaction import channel_groups, channel_masks, plan_compaction
from tests.compaction.networks import NETWORKS, Network
from tests.compaction.truth import assert_same, in_float64, masked, random_masks, random_units, randomised

each_network = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


def build(network: Network, seed: int):
    torch.manual_seed(seed)
    return randomised(network.make(), seed), in_float64(network.inputs())


@each_network
def test_channels_that_masks_remove_are_gone_and_nothing_changes(network):
    model, inputs = build(network, 0)
    groups = channel_groups(model, inputs)
    for seed in range(2):
        kept = random_units(groups, seed)
        masks = channel_masks(model, groups, kept)
        recipe = plan_compaction(model, masks, inputs)
        assert_same(masked(model, masks), recipe.apply(model, masks), recipe, masks, inputs)
        for group, keep in zip(groups.groups, kept, strict=True):
            for member in group.members:
                stays = recipe.kept.get(member.name, {}).get(member.dim, torch.arange(len(member.units)))
                units = torch.from_numpy(member.units)[stays]
                assert set(units[units >= 0].tolist()) == set(keep.nonzero().flatten().tolist())


@each_network
@pytest.mark.parametrize("density", [0.05, 0.25])
def test_what_single_weights_leave_dead_is_removed_and_nothing_changes(network, density):
    model, inputs = build(network, 1)
    masks = random_masks(model, density, 2)
    recipe = plan_compaction(model, masks, inputs)
    assert_same(masked(model, masks), recipe.apply(model, masks), recipe, masks, inputs)
