"""Masks go to torch.nn.utils.prune and come back, through real pruned modules."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import ntksap
from ntksap import MaskError, Masks
from ntksap.pruning.interchange import from_tensors, from_torch_prune, to_torch_prune
from tests.cases import BY_NAME, CASES


def test_dictionaries_of_bools_and_of_zeros_and_ones():
    bits = torch.tensor([[True, False, True]])
    expected = Masks({"a.weight": bits})
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32):
        assert from_tensors({"a.weight": bits.to(dtype)}) == expected
    assert from_tensors(expected.to("cpu")) == expected


def test_weights_in_place_of_masks_are_refused():
    for bad in (torch.tensor([0.5, 1.0]), torch.tensor([0.0, float("nan")]), torch.tensor([2, 0])):
        with pytest.raises(MaskError, match=r"'fc\.weight' holds values other than 0 and 1"):
            from_tensors({"fc.weight": bad})


def test_masks_of_a_module_that_torch_pruned_and_of_its_state_dict():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    torch_prune.l1_unstructured(module[0], "weight", amount=0.75)
    torch_prune.random_unstructured(module[3], "weight", amount=5)
    torch_prune.random_unstructured(module[3], "bias", amount=1)
    masks = from_torch_prune(module)
    assert [(layer["name"], layer["kept"]) for layer in masks.layers()] == [
        ("0.weight", 18),
        ("3.weight", 7),
        ("3.bias", 2),
    ]
    assert from_torch_prune(module.state_dict()) == masks
    fresh = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    masks.attach(fresh)
    assert masks.obeyed_by(fresh)


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name != "tied"])
def test_there_and_back_gives_the_same_masks_and_the_same_network(name):
    case = BY_NAME[name]
    module = case.module().eval()
    masks = ntksap.prune(module, 0.5, "random")
    if name == "attention":  # torch's attention never runs the hook that would mask its output projection
        masks = Masks({key: mask for key, mask in masks.items() if "out_proj" not in key})
    ours, theirs = module, copy.deepcopy(module)
    masks.attach(ours)
    to_torch_prune(masks, theirs)
    assert from_torch_prune(theirs) == masks
    inputs, _ = case.batches()[0]
    outputs = [m(**inputs) if isinstance(inputs, dict) else m(inputs) for m in (ours, theirs)]
    torch.testing.assert_close(*map(ntksap.net.net.first_tensor, outputs), rtol=0, atol=0)


def test_recurrent_layers_too():
    torch.manual_seed(0)
    ours = nn.LSTM(3, 4, batch_first=True)
    theirs = copy.deepcopy(ours)
    masks = ntksap.prune(ours, 0.5, "magnitude")
    masks.attach(ours)
    to_torch_prune(masks, theirs)
    assert from_torch_prune(theirs) == masks
    inputs = torch.randn(2, 5, 3)
    torch.testing.assert_close(ours(inputs)[0], theirs(inputs)[0])


def test_a_module_that_is_not_pruned_and_masks_of_another_model():
    with pytest.raises(MaskError, match=r"nothing here is pruned by torch\.nn\.utils\.prune"):
        from_torch_prune(nn.Linear(2, 2))
    module = nn.Linear(2, 2)
    with pytest.raises(MaskError, match="another model"):
        to_torch_prune(Masks({"weight": torch.ones(3, 3, dtype=torch.bool)}), module)
    assert not hasattr(module, "weight_mask")
