import pytest
import torch
from torch import nn

import ntksap
from ntksap import MaskError, Masks, cost, models
from tests.cases import BY_NAME, CASES


def test_the_papers_dense_numbers():
    assert cost(models.build("resnet20"), input_shape=(3, 32, 32)).dense == pytest.approx(41.3e6, rel=1e-3)
    assert cost(models.build("vgg16-bn", num_classes=100), input_shape=(3, 32, 32)).dense == pytest.approx(
        31.4e7, rel=1e-3
    )
    assert cost(models.build("resnet18", num_classes=200), input_shape=(3, 64, 64)).dense == pytest.approx(
        14.9e7, rel=3e-3
    )


def test_a_convolution_counted_by_hand():
    module = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6))
    counted = cost(module, input_shape=(4, 9, 9))
    places = 4 * 4
    assert [layer.dense for layer in counted.layers] == [6 * 2 * 9 * places + 6 * places, 2 * 6 * places]
    mask = torch.zeros(6, 2, 3, 3, dtype=torch.bool)
    mask[0, 0, 0, :2] = True
    under = cost(module, Masks({"0.weight": mask}), input_shape=(4, 9, 9))
    assert [layer.sparse for layer in under.layers] == [2 * places + 6 * places, 2 * 6 * places]
    assert under.dense == counted.dense


def test_by_a_dense_matrix_of_the_layer():
    """Twin: a weight is applied once for each non-zero entry of the layer's Jacobian by its input."""
    for layer, shape in [
        (nn.Conv2d(2, 4, 3, groups=2, bias=False), (2, 5, 5)),
        (nn.ConvTranspose2d(3, 2, 2, stride=2, bias=False), (3, 4, 4)),
        (nn.Conv1d(4, 4, 1, groups=4, bias=False), (4, 6)),
        (nn.Linear(5, 3, bias=False), (7, 5)),
    ]:
        inputs = torch.ones(1, *shape)
        jacobian = torch.autograd.functional.jacobian(layer, inputs)
        assert cost(layer, input_shape=shape).dense == int((jacobian != 0).sum())


def test_attention():
    module = BY_NAME["attention"].module()
    counted = {layer.name: layer for layer in cost(module, input_shape=(3, 4)).layers}
    tokens = 3
    assert counted["attention"].dense == tokens * (24 * 8 + 24 + 8 * 8 + 8)
    cross = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
    mask = torch.zeros(24, 8, dtype=torch.bool)
    mask[8:16, 0] = True  # of the keys' projection alone
    masks = Masks({"in_proj_weight": mask, "out_proj.weight": torch.zeros(8, 8, dtype=torch.bool)})

    def inputs(batch, generator):
        return torch.zeros(batch, 2, 8), torch.zeros(batch, 5, 8), torch.zeros(batch, 5, 8)

    assert cost(cross, masks, inputs=inputs).sparse == 8 * 5
    assert cost(cross, masks, inputs=inputs).dense == 2 * 64 + 5 * 64 + 5 * 64 + 2 * 64


def test_inside_an_encoder_layer_whose_fast_path_skips_its_modules():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    names = {c.name for c in cost(layer, input_shape=(3, 8)).layers}
    assert names == {"self_attn", "linear1", "linear2", "norm1", "norm2"}


def test_a_module_used_twice_costs_twice_and_a_tied_weight_follows_its_mask():
    module = BY_NAME["tied"].module()
    dense = {layer.name: layer.dense for layer in cost(module, input_shape=(6,)).layers}
    assert dense == {"first": 2 * 42, "tied": 36, "head": 21}
    masks = {"first.weight": torch.zeros(6, 6, dtype=torch.bool), "head.weight": torch.ones(3, 6, dtype=torch.bool)}
    sparse = {layer.name: layer.sparse for layer in cost(module, Masks(masks), input_shape=(6,)).layers}
    assert sparse == {"first": 2 * 6, "tied": 0, "head": 21}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_and_nothing_changes(case):
    module = case.module().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    masks = ntksap.prune(module, 0.5, "random", **case.source())
    counted = cost(module, masks, **case.source())
    assert 0 < counted.sparse < counted.dense
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training and not part._forward_hooks for part in module.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_masks_of_another_model():
    with pytest.raises(MaskError, match="another model"):
        cost(nn.Linear(2, 2), Masks({"x": torch.ones(1, dtype=torch.bool)}), input_shape=(2,))
