"""Iterative magnitude pruning against the same in plain torch, without this package's masks."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import ntksap
from tests.cases import BY_NAME, Case, train


def by_hand(case: Case, module: nn.Module, levels: int, density: float, rewind: int):
    """Masks after each level, and the weights to start from: one loop, weights set to zero after each step."""
    names = [name for name, p in module.named_parameters() if p.dim() > 1]
    total = sum(dict(module.named_parameters())[name].numel() for name in names)
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    kept = {name: torch.ones_like(start[name]) for name in names}
    found = []
    for level in range(1, levels + 1):
        twin = copy.deepcopy(module).eval()
        weights = dict(twin.named_parameters())
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(start[name] * kept.get(name, 1))
        optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
        for epoch in range(2):
            for inputs, labels in case.batches():
                optimizer.zero_grad()
                nn.functional.cross_entropy(twin(inputs.double()), labels).backward()
                for name in names:
                    weights[name].grad *= kept[name]
                optimizer.step()
            if level == 1 and epoch + 1 == rewind:
                anchor = {name: weight.detach().clone() for name, weight in weights.items()}
        if level == 1 and rewind:
            start = anchor
        sizes = torch.cat([(weights[name].detach().abs() * kept[name]).flatten() for name in names])
        least = sizes.sort(descending=True).values[round(density ** (level / levels) * total) - 1]
        kept = {name: (weights[name].detach().abs() * kept[name] >= least).double() for name in names}
        found.append({name: mask.bool() for name, mask in kept.items()})
    return found, start


@pytest.mark.parametrize("case", ["conv-bn", "residual", "no-bias"])
@pytest.mark.parametrize("rewind", [0, 1])
def test_it_is_train_remove_rewind_and_again(case, rewind):
    case = BY_NAME[case]
    module = case.module().double()
    data = [(inputs.double(), labels) for inputs, labels in case.batches()]
    seen: list[ntksap.Masks] = []
    masks = ntksap.prune(
        module, 0.7, "imp", train=partial(train, data=data), rounds=3, rewind_epoch=rewind, on_round=seen.append
    )
    expected, start = by_hand(case, module, 3, 0.3, rewind)
    for got, wanted in zip(seen, expected, strict=True):
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert all(torch.allclose(masks.weights[name], weight, rtol=1e-12, atol=0) for name, weight in start.items())
    assert masks.info["rewind_epoch"] == rewind
    if not rewind:
        assert all(torch.equal(masks.weights[name], p) for name, p in module.named_parameters())


def test_a_level_removes_a_fifth_of_what_is_left_by_default():
    case = BY_NAME["no-bias"]
    seen = []
    ntksap.prune(case.module(), 1 - 0.8**3, "imp", train=partial(train, data=case.batches()), on_round=seen.append)
    assert [masks.kept for masks in seen] == [round(0.8**level * 64) for level in (1, 2, 3)]


def test_levels_may_be_shorter_than_the_training():
    case = BY_NAME["no-bias"]
    epochs = []

    def counted(module, masks):
        for record in train(module, masks, case.batches(), epochs=5):
            epochs.append(masks.kept)
            yield record

    ntksap.prune(case.module(), 0.5, "imp", train=counted, rounds=2, level_epochs=3)
    assert epochs == [64] * 3 + [45] * 3


def test_what_cannot_be_done_is_said():
    case = BY_NAME["no-bias"]

    def never(module, masks):
        return iter(())

    def careless(module, masks):
        with torch.no_grad():
            module[2].weight += 0.01
        yield

    with pytest.raises(ntksap.InputError, match="level 1 was trained for 2 epochs, but rewind_epoch is 3"):
        ntksap.prune(case.module(), 0.5, "imp", train=partial(train, data=case.batches()), rewind_epoch=3)
    with pytest.raises(ntksap.InputError, match="trained for 0 epochs"):
        ntksap.prune(case.module(), 0.5, "imp", train=never)
    with pytest.raises(ntksap.InputError, match="train= returned None, but it must yield after each epoch"):
        ntksap.prune(case.module(), 0.5, "imp", train=lambda module, masks: None)
    with pytest.raises(ntksap.InputError, match="without the optimizer"):
        ntksap.prune(case.module(), 0.5, "imp", train=careless, rounds=2)
    with pytest.raises(ntksap.InputError, match="snip does not train the network"):
        ntksap.prune(case.module(), 0.5, "snip", data=case.batches(), train=careless)
    with pytest.raises(ntksap.InputError, match="at least 0"):
        ntksap.prune(case.module(), 0.5, "imp", train=careless, rewind_epoch=-1)


def test_another_epoch_to_rewind_to_is_refused_when_resuming():
    case = BY_NAME["no-bias"]
    settings = {"train": partial(train, data=case.batches()), "rounds": 2}
    seen: list[ntksap.Masks] = []
    ntksap.prune(case.module(), 0.5, "imp", rewind_epoch=1, on_round=seen.append, **settings)
    with pytest.raises(ntksap.InputError, match="cannot resume: rewind_epoch was 1 before, it is 0 now"):
        ntksap.prune(case.module(), 0.5, "imp", after=seen[0], **settings)
    assert ntksap.prune(case.module(), 0.5, "imp", rewind_epoch=1, after=seen[0], **settings) == seen[1]
