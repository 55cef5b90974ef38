"""A recipe rebuilds the smaller module, carries an optimizer over, and is refused where it does not belong."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ntksap
from ntksap.compaction import channel_groups, channel_masks, load_recipe, plan_compaction, save_recipe
from tests.compaction.networks import NETWORKS
from tests.compaction.truth import in_float64, outputs, random_masks, random_units, randomised

BY_NAME = {network.name: network for network in NETWORKS}


def planned(name):
    torch.manual_seed(0)
    model, inputs = randomised(BY_NAME[name].make(), 0), in_float64(BY_NAME[name].inputs())
    groups = channel_groups(model, inputs)
    masks = channel_masks(model, groups, random_units(groups, 0))
    return model, inputs, masks, plan_compaction(model, masks, inputs)


@pytest.mark.parametrize("name", ["residual", "split attention", "nn.Transformer", "norms of channels", "tied"])
def test_a_module_of_the_first_size_becomes_the_small_one_again(name, tmp_path):
    model, inputs, masks, recipe = planned(name)
    small = recipe.apply(model, masks)
    save_recipe(recipe, tmp_path / "recipe.safetensors")
    fresh = BY_NAME[name].make().double().eval()
    again = ntksap.load_compact(fresh, tmp_path / "recipe.safetensors")
    again.load_state_dict(small.state_dict())
    for expected, found in zip(outputs(small, inputs), outputs(again, inputs), strict=True):
        assert torch.equal(expected, found)
    assert str(again) == str(small)
    assert fresh.state_dict().keys() == again.state_dict().keys()


def test_constants_that_went_into_biases_come_with_the_recipe(tmp_path):
    torch.manual_seed(0)
    model = randomised(BY_NAME["functions that are not 0 at 0"].make(), 0)
    inputs = torch.randn(2, 4, dtype=torch.float64)
    groups = channel_groups(model, inputs)
    masks = channel_masks(model, groups, random_units(groups, 0))
    recipe = plan_compaction(model, masks, inputs)
    assert recipe.folded
    save_recipe(recipe, tmp_path / "recipe")
    loaded = load_recipe(tmp_path / "recipe")
    with torch.no_grad():
        for name, mask in masks.items():
            (dict(model.named_parameters()) | dict(model.named_buffers()))[name].mul_(mask)
    expected, small = model(inputs), ntksap.load_compact(model, loaded)
    torch.testing.assert_close(small(inputs), expected, rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training_continues_with_the_optimizers_state_as_the_masked_module_does(kind):
    torch.manual_seed(0)
    model, inputs, masks, recipe = planned("residual")
    settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    masks.attach(model)
    optimizer = kind(model.parameters(), lr=0.01, **settings)
    target = torch.randn(2, 3, dtype=torch.float64)

    def step(module, stepper):
        stepper.zero_grad()
        nn.functional.mse_loss(module(inputs), target).backward()
        stepper.step()

    for _ in range(3):
        step(model, optimizer)
    small = recipe.apply(model, masks)
    resumed = kind(small.parameters(), lr=0.01, **settings)
    resumed.load_state_dict(recipe.optimizer_state(optimizer, model, small))
    for _ in range(3):
        step(model, optimizer)
        step(small, resumed)
    torch.testing.assert_close(small(inputs), model(inputs), rtol=1e-10, atol=1e-10)


def test_state_of_another_shape_is_refused():
    model, _, masks, recipe = planned("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[next(model.parameters())]["factor"] = torch.ones(3, 3)
    with pytest.raises(ntksap.InputError, match="start a new optimizer"):
        recipe.optimizer_state(optimizer, model, recipe.apply(model, masks))


def test_masks_are_cut_with_the_module_and_hold_there():
    torch.manual_seed(0)
    model, inputs = randomised(BY_NAME["lenet"].make(), 0), in_float64(BY_NAME["lenet"].inputs())
    masks = random_masks(model, 0.1, 0)
    recipe = plan_compaction(model, masks, inputs)
    small = recipe.apply(model, masks)
    assert recipe.masks(masks).obeyed_by(small)
    assert recipe.masks(masks).total < masks.total


def test_hooks_of_masks_do_not_stay_on_the_small_module():
    model, inputs, masks, recipe = planned("mlp")
    masks.attach(model)
    small = recipe.apply(model, masks)
    small.load_state_dict(small.state_dict())
    small(inputs).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in small.parameters())


def test_a_recipe_for_another_model_is_refused():
    _, _, _, recipe = planned("mlp")
    with pytest.raises(ntksap.MaskError, match="another model"):
        ntksap.load_compact(nn.Linear(3, 3), recipe)


def test_files_that_are_no_recipes_are_refused(tmp_path):
    with pytest.raises(ntksap.MaskError, match="no such file"):
        load_recipe(tmp_path / "none")
    (tmp_path / "text").write_text("no")
    with pytest.raises(ntksap.MaskError, match="not a recipe"):
        load_recipe(tmp_path / "text")
    save_file({"x": torch.ones(1)}, tmp_path / "other")
    with pytest.raises(ntksap.MaskError, match="holds no recipe"):
        load_recipe(tmp_path / "other")
