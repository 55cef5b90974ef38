import pytest
import torch

import ntksap
from ntksap import InputError, Net
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.models.cifar_resnet import CifarResNet
from ntksap.net import precision
from ntksap.pruning.probe import Probe
from tests.cases import conv_bn


def ranks(values: torch.Tensor) -> torch.Tensor:
    return values.flatten().argsort().argsort().double()


def test_bfloat16_ranks_the_weights_like_float32():
    module = CifarResNet(8, width=8)
    shape = (3, 16, 16)
    found = []
    for name in ("float32", "bfloat16"):
        net = Net(module, **precision.arithmetic(name))
        masks = {n: torch.ones_like(net.weights[n], dtype=torch.bool) for n in net.prunable}
        scores = ntk_sap(net, masks, Probe.of(net, input_shape=shape), draws=2, batch=16)
        assert all(score.dtype == torch.float32 for score in scores.values())
        found.append(torch.cat([score.flatten() for score in scores.values()]))
    assert not torch.equal(*found)  # it did compute in bfloat16
    assert torch.corrcoef(torch.stack([ranks(values) for values in found]))[0, 1] > 0.85


def test_auto_is_the_models_own_precision_and_the_record_says_which():
    shape = {"input_shape": (2, 5, 5), "rounds": 1}
    assert precision.resolve("auto", torch.float64) == "float64"
    assert precision.resolve("bfloat16", torch.float32) == "bfloat16"
    assert ntksap.prune(conv_bn(), 0.5, **shape).info["precision"] == "float32"
    assert ntksap.prune(conv_bn().double(), 0.5, **shape).info["precision"] == "float64"


def test_float64_is_computed_in_float64():
    seen = []
    how = {"precision": "float64", "input_shape": (2, 5, 5), "rounds": 1}
    ntksap.prune(conv_bn(), 0.5, "ntk-sap", output=lambda y: seen.append(y.dtype) or y, **how)
    assert set(seen) == {torch.float64}


def test_unknown_precisions():
    with pytest.raises(InputError, match="Known: auto, bfloat16, float32, float64"):
        ntksap.prune(conv_bn(), 0.5, precision="half", input_shape=(2, 5, 5))
