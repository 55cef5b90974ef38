"""A pruned model in a file without its pruned weights, and back."""

import copy
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import ntksap
from ntksap import InputError, MaskError


def pruned(sparsity=0.7, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(180, 7)).to(dtype)
    model(torch.randn(4, 3, 8, 8, dtype=dtype))  # so that running statistics are some
    masks = ntksap.prune(model, sparsity, "random")
    masks.attach(model)
    return model, masks


def other(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(180, 7)).to(dtype)


def bits(model):
    flat = {name: tensor.reshape(-1) + 0 for name, tensor in model.state_dict().items()}  # −0 + 0 = 0
    return {name: tensor.view(torch.uint8).tolist() for name, tensor in flat.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_model_comes_back_exactly(tmp_path, dtype, layout):
    model, masks = pruned(dtype=dtype)
    model.to(memory_format=layout)
    ntksap.save_sparse(model, masks, tmp_path / "sparse")
    twin = other(dtype)
    loaded = ntksap.load_sparse(twin, tmp_path / "sparse")
    assert loaded == masks
    assert loaded.info == json.loads(json.dumps(masks.info))
    assert bits(twin) == bits(model)


@pytest.mark.slow
def test_resnet50_at_90_percent_takes_at_most_14_mib(tmp_path):
    model = ntksap.models.build("resnet50", seed=0)
    masks = ntksap.prune(model, 0.9, "magnitude")
    masks.attach(model)
    ntksap.save_sparse(model, masks, tmp_path / "sparse")
    assert (tmp_path / "sparse").stat().st_size <= 14 * 2**20


def test_tied_weights_are_saved_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight
            self.register_buffer("passing", torch.ones(3), persistent=False)

    model, twin = Tied(), Tied()
    masks = ntksap.Masks({"head.weight": torch.rand(6, 4) < 0.5})
    masks.attach(model)
    ntksap.save_sparse(model, masks, tmp_path / "sparse")
    ntksap.load_sparse(twin, tmp_path / "sparse")
    assert torch.equal(twin.table.weight, model.table.weight)
    with safe_open(tmp_path / "sparse", framework="pt") as file:
        assert sorted(file.keys()) == ["kept/head.weight", "masks/head.weight"]


def test_pruned_weights_that_are_not_zero_are_not_lost(tmp_path):
    model, masks = pruned()
    with pytest.raises(MaskError, match=r"call masks\.attach\(model\) first"):
        ntksap.save_sparse(other(), masks, tmp_path / "sparse")
    assert not (tmp_path / "sparse").exists()
    model[0].__class__ = type("Own", (nn.Conv2d,), {"get_extra_state": lambda self: {"a": 1}})
    with pytest.raises(InputError, match="_extra_state"):
        ntksap.save_sparse(model, masks, tmp_path / "sparse")


def test_every_flipped_bit_is_noticed(tmp_path):
    model, masks = pruned()
    path, damaged, twin = tmp_path / "sparse", tmp_path / "damaged", other()
    ntksap.save_sparse(model, masks, path)
    content, before = path.read_bytes(), copy.deepcopy(twin.state_dict())
    for place in range(0, len(content), 97):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        damaged.write_bytes(changed)
        try:
            ntksap.load_sparse(twin, damaged)
        except MaskError:
            continue
        assert bits(twin) == bits(model), place  # spaces, or the order of keys
        twin.load_state_dict(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in twin.state_dict().items())


def test_a_file_that_is_not_one_is_refused_in_a_sentence(tmp_path):
    model, masks = pruned()
    with pytest.raises(MaskError, match="no such file"):
        ntksap.load_sparse(model, tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(MaskError, match="not a sparse model, or damaged"):
        ntksap.load_sparse(model, tmp_path / "text")
    masks.save(tmp_path / "masks")
    with pytest.raises(MaskError, match="holds no sparse model of ours"):
        ntksap.load_sparse(model, tmp_path / "masks")
    save_file(load_file(tmp_path / "masks"), tmp_path / "deep", {"ntksap-sparse-1": "[" * 100_000})
    with pytest.raises(MaskError, match="nested too deeply"):
        ntksap.load_sparse(model, tmp_path / "deep")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(3, 3), "'0.weight' is not a parameter of this one"),
        (nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Flatten(), nn.Linear(180, 7)), "is not in both"),
        (
            nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(90, 7)),
            r"shape \(7, 180\) there",
        ),
        (other(torch.float64), "torch.float32 of shape .* there, torch.float64"),
    ],
)
def test_another_model_is_refused_and_left_alone(tmp_path, model, said):
    own, masks = pruned()
    ntksap.save_sparse(own, masks, tmp_path / "sparse")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(MaskError, match=said):
        ntksap.load_sparse(model, tmp_path / "sparse")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
