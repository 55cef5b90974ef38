import pytest
import torch
from torch import nn

from ntksap import InputError, models

PARAMETERS = {  # counted by hand or by torchvision for the architectures that it has
    "resnet20": 272_474,
    "resnet56": 855_770,
    "resnet110": 1_730_714,
    "vgg16-bn": 14_728_266,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "lenet-300-100": 266_610,
    "lenet-5": 61_706,
    "conv-4": 2_425_930,
}


@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_runs_forward(name):
    model = models.model_named(name)
    shape = (3, 64, 64) if model.input_shape[1] == 224 else model.input_shape
    module = models.build(name, num_classes=7).eval()
    with torch.no_grad():
        assert module(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name):
    assert sum(p.numel() for p in models.build(name).parameters()) == PARAMETERS[name]


def test_imagenet_resnets_have_torchvisions_keys():
    keys = set(models.build("resnet50").state_dict())
    for key in ("conv1.weight", "bn1.running_mean", "layer1.0.conv3.weight", "layer1.0.downsample.0.weight",
                "layer1.0.downsample.1.num_batches_tracked", "layer4.2.bn3.bias", "fc.weight", "fc.bias"):  # fmt: skip
        assert key in keys
    assert len(keys) == 320
    assert "layer1.0.downsample.0.weight" not in models.build("resnet18").state_dict()


def test_wide_variants_and_other_inputs():
    assert models.build("wide-resnet20").conv.out_channels == 32
    small = models.build("resnet20", input_shape=(1, 8, 8), num_classes=4).eval()
    assert small(torch.zeros(1, 1, 8, 8)).shape == (1, 4)
    assert models.build("lenet-5", input_shape=(3, 32, 32)).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_weights_depend_on_the_seed_alone_and_are_kaiming_normal():
    torch.manual_seed(1)
    first = models.build("resnet20", seed=3)
    state = torch.get_rng_state()
    second = models.build("resnet20", seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.conv.weight, models.build("resnet20", seed=4).conv.weight)
    deep = first.blocks[8].conv1.weight.detach()
    assert float(deep.std()) == pytest.approx((2 / 576) ** 0.5, rel=0.02)
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in first.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize("name", models.MODELS)
def test_every_model_has_other_widths_in_proportion(name):
    model = models.model_named(name)
    usual, half = (models.outline(f"{name}-w{width}") for width in (model.width, model.width // 2))
    counts = [[p.shape[0] for p in one.parameters()] for one in (usual, half)]
    assert [tuple(p.shape) for p in usual.parameters()] == [tuple(p.shape) for p in models.outline(name).parameters()]
    assert all(b == a or abs(b - a / 2) <= 0.5 for a, b in zip(*counts, strict=True))
    assert counts[1] != counts[0]
    assert models.model_named(f"{name}-w1").at_width(3).name == f"{name}-w3"
    for wrong in (f"{name}-w0", f"{name}-w", f"{name}-w04", f"{name}-w2-w3", f"{name}-w123456"):
        with pytest.raises(InputError, match="unknown model"):
            models.model_named(wrong)


def test_unknown_names_and_depths():
    with pytest.raises(InputError, match="Did you mean 'vgg16-bn'"):
        models.build("vgg16")
    with pytest.raises(InputError, match="6n"):
        models.CifarResNet(21)
    with pytest.raises(InputError, match="one of 11, 13, 16, 19"):
        models.VGG(12)
