"""Rescaling: once, recorded, and never a second time."""

import copy

import pytest
import torch
from torch import nn

import ntksap
from ntksap import InputError, Masks
from tests.cases import BY_NAME, CASES

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def pruned(module: nn.Module, **settings) -> Masks:
    return ntksap.prune(module, 0.6, "random", floor=1, **settings)


@each_case
def test_kept_weights_are_multiplied_by_one_over_the_root_of_the_density(case):
    module = case.module()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    masks = pruned(module)
    masks.attach(module, rescale=True)
    assert masks.obeyed_by(module)
    for name, parameter in module.named_parameters():
        if name in masks:
            expected = before[name] * masks[name] * masks[name].double().mean().rsqrt().float()
            torch.testing.assert_close(parameter.detach(), expected)
        else:
            assert torch.equal(parameter, before[name])


def test_by_unit_each_output_has_its_own_factor_and_an_empty_one_none():
    module = nn.Linear(4, 3, bias=False)
    before = module.weight.detach().clone()
    mask = torch.tensor([[True] * 4, [True, False, False, False], [False] * 4])
    Masks({"weight": mask}).attach(module, rescale="unit")
    torch.testing.assert_close(module.weight.detach(), before * mask * torch.tensor([[1.0], [2.0], [1.0]]))


def test_the_output_of_a_transposed_convolution_is_its_second_dimension():
    module = nn.ConvTranspose2d(4, 2, 1, bias=False)
    before = module.weight.detach().clone()
    mask = torch.ones(4, 2, 1, 1, dtype=torch.bool)
    mask[:3, 1] = False
    Masks({"weight": mask}).attach(module, rescale="unit")
    torch.testing.assert_close(module.weight.detach(), before * mask * torch.tensor([1.0, 2.0]).view(1, 2, 1, 1))


def test_outputs_keep_the_variance_that_the_initialiser_meant():
    module = nn.Sequential(nn.Linear(400, 300, bias=False), nn.ReLU(), nn.Linear(300, 200, bias=False))
    for layer in (module[0], module[2]):
        nn.init.kaiming_normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(200, 400, generator=torch.Generator().manual_seed(1))
    variances = [module(inputs).var().item()]
    masks = ntksap.prune(module, 0.9, "random", allocation="uniform")
    for rescale in (False, True):
        twin = copy.deepcopy(module)
        masks.attach(twin, rescale=rescale)
        variances.append(twin(inputs).var().item())
    dense, plain, rescaled = variances
    assert plain == pytest.approx(0.01 * dense, rel=0.25)
    assert rescaled == pytest.approx(dense, rel=0.25)


def test_masks_that_were_made_for_it_do_it_by_themselves_also_from_a_file(tmp_path):
    module = BY_NAME["conv-bn"].module()
    masks = pruned(module, rescale=True)
    assert masks.info["rescale"] == "layer"
    masks.save(tmp_path / "masks.safetensors")
    first, second, plain = (copy.deepcopy(module) for _ in range(3))
    masks.attach(first)
    Masks.load(tmp_path / "masks.safetensors").attach(second)
    masks.attach(plain, rescale=False)
    assert torch.equal(first[0].weight, second[0].weight)
    torch.testing.assert_close(first[0].weight, plain[0].weight * masks["0.weight"].double().mean().rsqrt().float())


def test_attaching_again_or_loading_a_checkpoint_does_not_rescale_twice():
    module = BY_NAME["conv-bn"].module()
    masks = pruned(module)
    masks.attach(module, rescale=True)
    once = copy.deepcopy(module.state_dict())
    masks.attach(module, rescale=True)
    assert all(torch.equal(once[name], value) for name, value in module.state_dict().items())

    loaded = BY_NAME["conv-bn"].module(seed=1)
    loaded.load_state_dict(once)
    masks.attach(loaded, rescale=True)  # weights that are pruned already are no fresh ones
    assert all(torch.equal(once[name], value) for name, value in loaded.state_dict().items())

    attached = BY_NAME["conv-bn"].module(seed=1)
    masks.attach(attached, rescale=True)
    attached.load_state_dict(once)
    assert all(torch.equal(once[name], value) for name, value in attached.state_dict().items())

    copied = copy.deepcopy(module)
    masks.attach(copied, rescale=True)
    assert all(torch.equal(once[name], value) for name, value in copied.state_dict().items())


def test_weights_that_were_attached_without_it_can_be_rescaled_later_and_sparser_masks_add_what_is_missing():
    module, direct = BY_NAME["conv-bn"].module(), BY_NAME["conv-bn"].module()
    dense, sparse = (ntksap.prune(module, s, "magnitude", floor=1) for s in (0.3, 0.8))
    dense.attach(module)
    dense.attach(module, rescale=True)
    sparse.attach(module, rescale=True)
    sparse.attach(direct, rescale=True)
    for name in sparse:
        torch.testing.assert_close(module.get_parameter(name), direct.get_parameter(name))


def test_a_way_to_rescale_that_there_is_not():
    with pytest.raises(InputError, match="Known: layer, none, unit"):
        pruned(nn.Linear(3, 3)).attach(nn.Linear(3, 3), rescale="rows")
