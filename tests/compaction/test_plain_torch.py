"""What comes out is plain PyTorch: it compiles, is exported, is trained and saved like any module."""

import copy

import pytest
import torch
from torch import nn

import ntksap
from ntksap.compaction import channel_groups, channel_masks
from tests.compaction.networks import NETWORKS
from tests.compaction.truth import outputs, random_units

BY_NAME = {network.name: network for network in NETWORKS}
SOME = ["residual", "u-net", "inverted residual", "attention", "nn.TransformerEncoder", "channel shuffle"]


def compacted(name):
    torch.manual_seed(0)
    model, inputs = BY_NAME[name].make().eval(), BY_NAME[name].inputs()
    groups = channel_groups(model, inputs)
    masks = channel_masks(model, groups, random_units(groups, 0))
    return ntksap.compact(model, masks, inputs), inputs


@pytest.mark.parametrize("name", SOME)
def test_it_compiles(name):
    small, inputs = compacted(name)
    compiled = torch.compile(small, backend="eager", fullgraph=True)
    torch.testing.assert_close(outputs(compiled, inputs), outputs(small, inputs))


@pytest.mark.parametrize("name", SOME)
def test_it_can_be_read_copied_and_compacted_again(name):
    small, inputs = compacted(name)
    twin = copy.deepcopy(small)
    torch.testing.assert_close(outputs(twin, inputs), outputs(small, inputs))
    everything = ntksap.Masks.ones(dict(small.named_parameters()))
    again = ntksap.compact(small, everything, inputs)
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in small.named_parameters()}


def test_training_mode_and_flags_of_the_module_stay():
    torch.manual_seed(0)
    model, inputs = BY_NAME["residual"].make().train(), BY_NAME["residual"].inputs()
    model.stem[0].weight.requires_grad_(False)
    groups = channel_groups(model, inputs)
    masks = channel_masks(model, groups, random_units(groups, 0))
    small = ntksap.compact(model, masks, inputs)
    assert model.training
    assert small.training
    assert not small.stem[0].weight.requires_grad
    whole = copy.deepcopy(model)
    masks.attach(whole)
    torch.testing.assert_close(outputs(small, inputs), outputs(whole, inputs), rtol=1e-4, atol=1e-5)
    assert torch.all(whole.stem[1].running_mean[~masks["stem.1.weight"]] == 0)


def test_weights_that_are_zero_by_chance_stay():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)  # a branch that starts at zero is to be trained
    masks = ntksap.Masks.ones({"0.weight": model[0].weight, "2.weight": model[2].weight})
    assert ntksap.compact(model, masks, torch.ones(1, 3))[0].out_features == 4
    assert ntksap.compact(model.requires_grad_(False), masks, torch.ones(1, 3))[0].out_features == 1


def test_masks_of_another_model_are_refused():
    with pytest.raises(ntksap.MaskError, match="another model"):
        ntksap.compact(nn.Linear(3, 3), {"x": torch.ones(1, dtype=torch.bool)}, torch.ones(1, 3))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOME)
def test_onnxruntime_gives_the_same_outputs(name, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    small, inputs = compacted(name)
    torch.onnx.export(small, (inputs,), tmp_path / "small.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    for expected, one in zip(outputs(small, inputs), found, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), expected.detach(), rtol=1e-4, atol=1e-4)
