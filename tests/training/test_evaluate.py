import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ntksap.data import Dataset
from ntksap.data.memory import MemorySplit
from ntksap.training.evaluation import evaluate
from ntksap.training.loop import train
from ntksap.training.state import TrainState
from tests.training.small_training import RECIPE, digits, network, same_bits, state_of


def test_the_numbers_are_those_of_one_pass_over_the_whole_test_set():
    some = digits(test=99)  # not a multiple of the batch
    state = state_of()
    record = list(train(state, some))[-1]
    images, labels = next(some.test.batches(99))
    with torch.no_grad():
        logits = state.model.eval()(images)
    ranks = [sorted(range(10), key=lambda k: -row[k]).index(label) for row, label in zip(logits, labels, strict=True)]
    assert record.test_loss == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
    assert record.top1 == sum(rank < 1 for rank in ranks) / 99
    assert record.top5 == sum(rank < 5 for rank in ranks) / 99
    assert record.top5 > record.top1


def test_with_fewer_than_five_classes_top5_is_top1():
    some = digits()
    keep = some.train.labels < 4
    few = MemorySplit(some.train.images[keep], some.train.labels[keep], mean=(0.3,), std=(0.4,), pad=1, flip=False)
    record = list(train(TrainState(network(classes=4), RECIPE), Dataset("few", 4, (1, 8, 8), few, few)))[-1]
    assert record.top5 == record.top1 < 1


def test_a_network_that_says_the_same_of_every_image_is_at_chance():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    _, top1, top5 = evaluate(TrainState(model, RECIPE), digits(test=360).test)
    assert (top1, top5) == (0.1, 0.5)  # the digits' test set has 36 of each class


def test_evaluation_changes_neither_weights_nor_buffers_nor_modes():
    state = state_of()
    state.model.train()
    state.model[1].eval()
    modes = [module.training for module in state.model.modules()]
    twin = network()
    twin.load_state_dict(state.model.state_dict())
    evaluate(state, digits().test)
    assert same_bits(state.model, twin)
    assert [module.training for module in state.model.modules()] == modes


def test_evaluation_that_fails_puts_the_modes_back():
    state = state_of()
    state.model.train()
    state.model.append(nn.Linear(3, 3))  # cannot follow ten classes
    with pytest.raises(RuntimeError):
        evaluate(state, digits().test)
    assert all(module.training for module in state.model.modules())
