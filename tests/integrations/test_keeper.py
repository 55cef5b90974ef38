"""What all integrations share, without the packages that they are for."""

import pytest
import torch

from ntksap import InputError, MaskError, Masks, prune
from ntksap.integrations.keeper import MaskKeeper
from tests.integrations.small_net import masks_of, network, zeros
from tests.processes.jobs import spawn
from tests.processes.work import net

HOW = {"sparsity": 0.5, "method": "magnitude", "input_shape": (8,)}


def test_masks_are_made_when_training_begins_and_not_again():
    model, keeper = network(), MaskKeeper(None, "", HOW)
    assert keeper.masks is None
    keeper.begin(model)
    first = keeper.masks
    assert first == masks_of(network())
    assert zeros(model) == first.total - first.kept
    with torch.no_grad():
        model[0].weight += 1.0
    keeper.begin(model)
    assert keeper.masks is first


def test_a_part_of_the_model_is_pruned_by_its_name():
    whole = torch.nn.ModuleDict({"net": network(), "head": torch.nn.Linear(3, 3)})
    keeper = MaskKeeper(None, "net", HOW)
    keeper.begin(whole)
    assert set(keeper.masks) == {"0.weight", "2.weight"}
    assert zeros(whole["head"]) == 0


@pytest.mark.parametrize(
    ("masks", "how", "message"),
    [(None, {}, "give masks=, or"), (None, {"method": "snip"}, "give masks=, or"), ("given", HOW, "omit sparsity")],
)
def test_masks_and_how_to_make_them_exclude_each_other(masks, how, message):
    with pytest.raises(InputError, match=message):
        MaskKeeper(masks_of(network()) if masks else None, "", how)


def test_a_weight_that_has_moved_is_found_at_the_next_save():
    model, keeper = network(), MaskKeeper(None, "", HOW)
    keeper.begin(model)
    keeper.state_dict()
    with torch.no_grad():
        model[0].weight += 1.0
    with pytest.raises(MaskError, match="pruned weights are no longer zero"):
        keeper.state_dict()


def test_a_checkpoint_brings_its_masks_and_they_are_not_made_again(tmp_path):
    keeper = MaskKeeper(None, "", HOW)
    keeper.begin(network())
    torch.save(keeper.state_dict(), tmp_path / "state")
    other, model = MaskKeeper(None, "", HOW), network(seed=1)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    other.begin(model)
    assert other.masks == keeper.masks != masks_of(network(seed=1))
    assert other.masks.info == keeper.masks.info
    assert keeper.masks.obeyed_by(model)


def test_masks_that_contradict_the_checkpoint_are_refused(tmp_path):
    keeper = MaskKeeper(None, "", HOW)
    keeper.begin(network())
    keeper.save(tmp_path)
    given = MaskKeeper(masks_of(network(seed=1)), "", {})
    with pytest.raises(MaskError, match="trained with masks other than"):
        given.resume_from(tmp_path, before_weights=True)
    pruned = MaskKeeper(None, "", HOW)
    pruned.begin(network(seed=1))
    with pytest.raises(MaskError, match="trained with masks other than"):
        pruned.resume_from(tmp_path)


def test_a_checkpoint_without_masks_needs_given_ones(tmp_path):
    with pytest.raises(MaskError, match=r"holds no masks\.safetensors"):
        MaskKeeper(None, "", HOW).resume_from(tmp_path)
    MaskKeeper(masks_of(network()), "", {}).resume_from(tmp_path)


def test_masks_come_from_a_file_with_the_weights_to_start_from_and_those_are_loaded_once(tmp_path):
    model = network()
    masks = masks_of(model)
    start = {name: torch.full(mask.shape, 2.0) for name, mask in masks.items()}
    Masks(masks, weights=start).save(tmp_path / "masks.safetensors")
    keeper = MaskKeeper(tmp_path / "masks.safetensors", "", {})
    keeper.begin(model)
    assert torch.equal(model[0].weight, 2.0 * masks["0.weight"])
    with torch.no_grad():
        model[0].weight *= 0.5
    keeper.begin(model)  # training goes on
    assert torch.equal(model[0].weight, 1.0 * masks["0.weight"])
    resumed, later = MaskKeeper(tmp_path / "masks.safetensors", "", {}), network(seed=1)
    resumed.load_state_dict(keeper.state_dict())
    resumed.begin(later)
    assert not torch.equal(later[0].weight, 2.0 * masks["0.weight"])


@pytest.mark.slow
def test_two_processes_prune_together_after_ddp_has_wrapped_the_module_and_stay_equal():
    first, second = spawn("kept", 2)
    assert first == second
    assert first[0] == prune(net(), 0.8, "ntk-sap-s", input_shape=(1, 8, 8)).sha256
