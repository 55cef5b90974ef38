import pytest
import torch
from torch import nn

import ntksap
from ntksap.methods.mag_1epoch import mag_1epoch
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe
from tests.cases import BY_NAME


@pytest.mark.parametrize("case", ["conv-bn", "residual", "frozen"])
def test_it_is_the_size_of_the_weights_that_torchs_own_sgd_trains(case):
    case = BY_NAME[case]
    module = case.module().double().train()
    net = Net(module)
    masks = {name: torch.ones_like(net.weights[name], dtype=torch.bool) for name in net.prunable}
    probe = Probe.of(net, data=case.batches(5), stream=True)
    got = mag_1epoch(net, masks, probe, prune_lr=0.2, prune_weight_decay=0.01)
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=0.2, momentum=0.9, weight_decay=0.01
    )
    for inputs, labels in case.batches(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs.double()), labels).backward()
        optimizer.step()
    trained = dict(module.named_parameters())
    for name in net.prunable:
        torch.testing.assert_close(got[name], trained[name].detach().abs(), rtol=1e-10, atol=1e-12)


def test_rounds_train_on_different_epochs_and_pruned_weights_stay_zero():
    case = BY_NAME["no-bias"]
    net = Net(case.module())
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(net.weights[name].shape, generator=generator) < 0.5 for name in net.prunable}
    asked = []

    def epoch(index):
        asked.append(index)
        return iter(case.batches(2))  # an iterator: batches are never stored

    probe = Probe.of(net, data=epoch, stream=True)
    scores = [mag_1epoch(net, masks, probe.at(round)) for round in (1, 2)]
    assert asked == [0, 1]
    for score in scores:
        assert all((score[name][~masks[name]] == 0).all() for name in masks)


def test_an_epoch_is_streamed():
    case = BY_NAME["no-bias"]
    alive = []

    def batches():
        for index, batch in enumerate(case.batches(6)):
            alive.append(index)
            yield batch

    probe = Probe.of(Net(case.module()), data=batches(), stream=True)
    epoch = probe.epoch(0, labelled=True)
    next(epoch)
    assert alive == [0]
    assert len(list(epoch)) == 5
    with pytest.raises(ntksap.InputError, match="iterated over again"):
        list(probe.epoch(1, labelled=True))


def test_a_divergence_is_said_to_be_one():
    case = BY_NAME["no-bias"]
    with pytest.raises(ntksap.ScoreError, match="lower prune_lr"):
        ntksap.prune(case.module(), 0.5, "mag-1epoch", data=case.batches(20), prune_lr=1e30)
    with pytest.raises(ntksap.InputError, match="prune_lr is a number, above 0"):
        ntksap.prune(case.module(), 0.5, "mag-1epoch", data=case.batches(), prune_lr=0.0)
