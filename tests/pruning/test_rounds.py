import pytest
import torch
from torch import nn

import ntksap
from ntksap import Net, Probe
from ntksap.net import weight_views
from ntksap.pruning import Selector, prune_rounds, schedule_named


def test_scores_that_are_all_zero_in_a_later_round_are_reported_there():
    net = Net(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))

    def score(net, masks, probe):
        """The second layer loses everything in the first round; then what is left of the first has no effect."""
        dense = all(mask.all() for mask in masks.values())
        return {"0.weight": torch.full((4, 3), float(dense)), "2.weight": torch.zeros(2, 4)}

    views = weight_views({"0.weight": (4, 3), "2.weight": (2, 4)})
    selector = Selector(0.2, 3, schedule_named("exponential"), views)
    rounds = prune_rounds(net, score, Probe.of(net), selector=selector)
    assert next(rounds).kept == 12
    with pytest.warns(ntksap.CollapseWarning, match="every score of round 2 of 3 is 0"):
        next(rounds)

    def score_of_pruned(net, masks, probe):
        """Only what is pruned has a score."""
        dense = all(mask.all() for mask in masks.values())
        return {name: (mask if dense else ~mask).float() for name, mask in masks.items()}

    rounds = prune_rounds(net, score_of_pruned, Probe.of(net), selector=selector)
    next(rounds)
    with pytest.warns(ntksap.CollapseWarning, match="every score of round 2 of 3 is 0"):
        next(rounds)
    again = prune_rounds(net, score_of_pruned, Probe.of(net), regrow=True, selector=selector)
    assert [masks.kept for masks in again] == [12, 7, 4]
